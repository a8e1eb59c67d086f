// Shape of the plan kernel: one CTA walks the requests, two passes.
#pragma once

namespace chunkattn::planning {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

}  // namespace chunkattn::planning
