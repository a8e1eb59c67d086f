"""Side-by-side figures for mixed batches: named cases, peers, the machine's limits, and a report.

`chunkattn bench` is the command. From Python::

    from chunkattn.bench import cases, session

    record = session.run(cases.load("cpu"), session.Settings(quick=True))
"""
