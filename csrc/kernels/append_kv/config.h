// Shape of the append_kv launch: a CTA writes one token's rows of K and V, and turns its rows of Q.
#pragma once

namespace chunkattn::append {

constexpr int kMaxThreads = 256;
constexpr int kVectorBytes = 16;  // a lane's load where addresses allow; one element where they do not

}  // namespace chunkattn::append
