#include "platform/counted.h"

#include <gtest/gtest.h>

namespace glmd {
namespace {

TEST(Counted, one_is_not_many) {
  EXPECT_EQ(counted(1, "layer"), "1 layer");
  EXPECT_EQ(counted(0, "layer"), "0 layers");
  EXPECT_EQ(counted(size_t{2}, "stop token"), "2 stop tokens");
}

}  // namespace
}  // namespace glmd
