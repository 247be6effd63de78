// Makes the checksums of formats right again after a change.
#pragma once

#include "tests/fuzz/target.h"

namespace mmt::fuzz {

void mend_png(Bytes& bytes);           ///< the CRC of every chunk
void mend_tar(Bytes& bytes);           ///< the sum of every header
void mend_known_shards(Bytes& bytes);  ///< the hash in front

}  // namespace mmt::fuzz
