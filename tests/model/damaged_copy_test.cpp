// Of several disks one may have wrong bytes: no logit hears of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "tests/support/reference_model.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

// Zeroes what the first `share` of every expert of a copy holds.
void damage(const std::string& folder, const Container& container, double share) {
  for (const auto& [name, tensor] : container.tensors()) {
    if (tensor.layout != TensorLayout::expert) continue;
    const std::filesystem::path original = container.files()[static_cast<size_t>(tensor.file)];
    const int file = ::open((folder / original.filename()).c_str(), O_WRONLY);
    const std::string zeros(static_cast<size_t>(share * static_cast<double>(tensor.bytes)), '\0');
    ASSERT_EQ(::pwrite(file, zeros.data(), zeros.size(), tensor.offset), std::ssize(zeros));
    ::close(file);
  }
}

// The smallest arena: every expert is read again and again, from wherever disks are free.
TEST(DamagedCopy, of_a_mirror_never_changes_a_bit) {
  const ReferenceModel reference = read_reference("base");
  const TemporaryFolder folder;
  const Container container = convert_and_open(oracle_folder("base"), folder / "container",
                                               Policy::q8, Policy::q8, reference.latent_norm_eps);
  const std::vector<int32_t>& ids = reference.cases.back().ids;
  const Logits sound = logits_of(container, ids, {.arena_share = 0});
  for (const double share : {0.2, 1.0}) {
    const std::string mirror = folder / ("mirror" + std::to_string(share));
    std::filesystem::copy(container.folder(), mirror);
    damage(mirror, container, share);
    for (const int64_t step_rows : {int64_t{1}, int64_t{7}}) {
      SCOPED_TRACE(testing::Message() << share << " damaged, steps of " << step_rows);
      const Logits got = logits_of(container, ids,
                                   {.arena_share = 0, .step_rows = step_rows, .mirrors = {mirror}});
      ASSERT_EQ(got.main.size(), sound.main.size());
      EXPECT_EQ(std::memcmp(got.main.data(), sound.main.data(), got.main.size() * 4), 0);
      ASSERT_EQ(got.draft.size(), sound.draft.size());
      EXPECT_EQ(std::memcmp(got.draft.data(), sound.draft.data(), got.draft.size() * 4), 0);
    }
  }
}

}  // namespace
}  // namespace glmd
