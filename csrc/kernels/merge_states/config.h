// Shape of the merge_states launch: memory-bound, one short row of a head for a group of lanes.
#pragma once

namespace chunkattn::merge {

constexpr int kThreads = 128;
constexpr int kVectorBytes = 16;  // a lane's access where addresses allow; one element where they do not

}  // namespace chunkattn::merge
