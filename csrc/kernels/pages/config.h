// Shape of a page move: memory-bound, several accesses of a thread in flight.
#pragma once

namespace chunkattn::pages {

constexpr int kThreads = 128;
constexpr int kPacksPerThread = 4;
constexpr int kPacksPerBlock = kThreads * kPacksPerThread;
constexpr int kMaxDims = 7;  // inside a page

}  // namespace chunkattn::pages
