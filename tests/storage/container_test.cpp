// Containers: what the converter wrote opens and loads; what is broken is refused in one line
// before memory is taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "storage/container.h"
#include "storage/dense_weights.h"
#include "storage/safetensors.h"
#include "tests/convert/tiny_checkpoint.h"
#include "tools/convert/converter.h"

namespace glmd {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;

class ContainerTest : public testing::Test {
 protected:
  void SetUp() override {
    test::TinyCheckpoint tiny = test::TinyCheckpoint::make();
    tiny.config.set("vocab_size", Json::integer(4160));  // of the tokenizer
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
      tiny.add(name, "BF16", {4160, 16});
    tiny.write(folder_ / "source");
    std::filesystem::copy_file(GLMD_SOURCE_DIR "/models/mini/tokenizer.json",
                               folder_ / "source/tokenizer.json");
    test::write_text(folder_ / "source/generation_config.json", R"({"temperature": 0.5})");
    test::write_text(folder_ / "source/chat_template.jinja", "{{ messages }}");
    const Result<void> converted = convert(
        {.source = folder_ / "source", .target = folder_ / "good", .policies = {}, .ignored = {}},
        [](const ConvertProgress&) { return true; });
    ASSERT_TRUE(converted.ok()) << converted.error().message;
  }
  // A copy to spoil.
  std::string copy() const {
    std::filesystem::remove_all(folder_ / "copy");
    std::filesystem::copy(folder_ / "good", folder_ / "copy");
    return folder_ / "copy";
  }
  TemporaryFolder folder_;
};

void replace(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = test::read_text(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  test::write_text(path, text.replace(at, from.size(), to));
}

void flip(const std::string& path, int64_t offset) {
  std::string text = test::read_text(path);
  text[static_cast<size_t>(offset)] = static_cast<char>(text[static_cast<size_t>(offset)] ^ 1);
  test::write_text(path, text);
}

TEST_F(ContainerTest, dense_weights_are_loaded_aligned_and_checked) {
  const Container container = Container::open(folder_ / "good").value();
  int64_t done = 0, total = 1;
  const Result<DenseWeights> loaded = DenseWeights::load(container, [&](int64_t d, int64_t t) {
    done = d;
    total = t;
    return Result<void>();
  });
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, DenseWeights::bytes_needed(container));
  const DenseWeights& weights = loaded.value();
  EXPECT_FALSE(weights.has("layers.2.experts.0"));
  for (const auto& [name, tensor] : container.tensors()) {
    if (tensor.layout == TensorLayout::expert) continue;
    ASSERT_TRUE(weights.has(name));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(weights.data(name)) % 64, 0U) << name;
    std::vector<uint8_t> bytes(static_cast<size_t>(tensor.bytes));
    ASSERT_TRUE(container.read(tensor, bytes).ok());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), weights.data(name))) << name;
  }
  EXPECT_EQ(weights.matrix("layers.0.attention.o").rows, 16);
  EXPECT_EQ(weights.matrix("layers.0.attention.o").columns, 10);
  EXPECT_EQ(weights.matrix("layers.0.attention.o").format, BlockFormat::nl5);
}

TEST_F(ContainerTest, loading_ends_with_the_error_of_its_progress) {
  const Container container = Container::open(folder_ / "good").value();
  int calls = 0;
  const Result<DenseWeights> loaded =
      DenseWeights::load(container, [&](int64_t, int64_t) -> Result<void> {
        if (++calls == 2) return error(ErrorKind::cancelled, "enough");
        return {};
      });
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().kind, ErrorKind::cancelled);
  EXPECT_EQ(calls, 2);
}

TEST_F(ContainerTest, a_flipped_bit_is_found_by_load_and_verify) {
  const std::string folder = copy();
  const Tensor router = *Container::open(folder).value().find("layers.1.router");
  const std::string file =
      Container::open(folder).value().files()[static_cast<size_t>(router.file)];
  flip(file, router.offset + 3);
  const Container container = Container::open(folder).value();
  const Result<DenseWeights> loaded = DenseWeights::load(container);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().kind, ErrorKind::corrupt);
  EXPECT_THAT(loaded.error().message, HasSubstr("layers.1.router: checksum: wanted "));
  EXPECT_THAT(Container::verify(folder),
              testing::ElementsAre(HasSubstr("layers.1.router: checksum")));
}

TEST_F(ContainerTest, verify_names_every_problem_at_once) {
  const std::string folder = copy();
  EXPECT_THAT(Container::verify(folder), testing::IsEmpty());
  std::filesystem::remove(folder + "/experts-001.safetensors");
  std::filesystem::resize_file(folder + "/mtp-00000.safetensors", 5000);
  const Tensor expert = *Container::open(folder_ / "good").value().find("layers.2.experts.3");
  flip(folder + "/experts-002.safetensors", expert.offset);
  EXPECT_THAT(Container::verify(folder),
              testing::UnorderedElementsAre(HasSubstr("experts-001.safetensors: open"),
                                            HasSubstr("mtp-00000.safetensors: size: wanted"),
                                            HasSubstr("layers.2.experts.3: checksum")));
}

TEST_F(ContainerTest, the_padding_of_an_expert_is_part_of_its_checksum) {
  const std::string folder = copy();
  const Container container = Container::open(folder).value();
  const Tensor& expert = *container.find("layers.1.experts.2");
  EXPECT_EQ(expert.offset % 4096, 0);
  EXPECT_EQ(expert.bytes % 4096, 0);
  flip(container.files()[static_cast<size_t>(expert.file)], expert.offset + expert.bytes - 1);
  std::vector<uint8_t> bytes(static_cast<size_t>(expert.bytes));
  EXPECT_EQ(container.read(expert, bytes).error().kind, ErrorKind::corrupt);
}

TEST_F(ContainerTest, settings_and_tokens_of_another_model_are_refused) {
  const auto expect_refusal = [](const std::string& folder, const std::string& message) {
    const Result<Container> opened = Container::open(folder);
    ASSERT_FALSE(opened.ok());
    EXPECT_THAT(opened.error().message, HasSubstr(message));
    EXPECT_THAT(Container::verify(folder), testing::ElementsAre(HasSubstr(message)));
  };
  std::string folder = copy();
  replace(folder + "/config.json", "\"rms_norm_eps\":1e-05", "\"rms_norm_eps\":2e-05");
  expect_refusal(folder, "/config.json: changed after the conversion: checksum: wanted ");
  expect_refusal(folder, "; other settings need another conversion of the checkpoint");
  folder = copy();
  test::write_text(folder + "/tokenizer.json", "{}");
  expect_refusal(folder, "/tokenizer.json: changed after the conversion: wanted ");
  std::filesystem::remove(folder + "/tokenizer.json");
  expect_refusal(folder, "/tokenizer.json: open: No such file");
}

TEST_F(ContainerTest, sampling_and_template_may_be_changed_and_are_named) {
  const std::string folder = copy();
  EXPECT_THAT(Container::changed_texts(folder), testing::IsEmpty());
  test::write_text(folder + "/generation_config.json", R"({"temperature": 0.7})");
  std::filesystem::remove(folder + "/chat_template.jinja");
  test::write_text(folder + "/tokenizer_config.json", "{}");
  EXPECT_TRUE(Container::open(folder).ok());
  EXPECT_THAT(Container::verify(folder), testing::IsEmpty());
  EXPECT_THAT(
      Container::changed_texts(folder),
      testing::ElementsAre(HasSubstr("/generation_config.json: changed after the conversion"),
                           HasSubstr("/tokenizer_config.json: added after the conversion"),
                           HasSubstr("/chat_template.jinja: open: No such file")));
}

TEST_F(ContainerTest, a_container_of_before_texts_were_recorded_is_read) {
  const std::string folder = copy();
  const uint64_t identity = Container::open(folder).value().identity();
  test::forget_accompanying(folder);
  test::write_text(folder + "/generation_config.json", R"({"temperature": 0.7})");
  const Result<Container> opened = Container::open(folder);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(opened.value().identity(), identity);
  EXPECT_THAT(Container::verify(folder), testing::IsEmpty());
  EXPECT_THAT(Container::changed_texts(folder), testing::IsEmpty());
}

TEST_F(ContainerTest, a_folder_that_may_not_be_entered_is_not_taken_for_an_empty_one) {
  const std::string folder = copy();
  std::filesystem::permissions(folder, std::filesystem::perms::none);
  const uid_t user = ::geteuid();
  const uid_t stranger = user == 0 ? 65534 : user;  // root may enter everything
  ASSERT_EQ(::seteuid(stranger), 0);
  const Result<Container> opened = Container::open(folder);
  ASSERT_EQ(::seteuid(user), 0);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().kind, ErrorKind::denied);
  EXPECT_THAT(opened.error().message, HasSubstr("glmd.json: open: Permission denied"));
}

// Opening a pipe for reading waits for a writer: a hostile folder would stop the service here.
TEST_F(ContainerTest, a_file_that_is_a_pipe_or_a_folder_is_refused_without_a_wait) {
  const auto make_pipe = [](const std::string& path) {
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  };
  const auto make_folder = [](const std::string& path) { std::filesystem::create_directory(path); };
  for (const std::function<void(const std::string&)>& put :
       {std::function<void(const std::string&)>(make_pipe), {make_folder}}) {
    for (const char* name :
         {"glmd.json", "config.json", "generation_config.json", "tokenizer.json",
          "dense-00000.safetensors", "experts-001.safetensors", "mtp-00000.safetensors"}) {
      SCOPED_TRACE(name);
      const std::string folder = copy();
      std::filesystem::remove(folder + "/" + name);
      put(folder + "/" + name);
      const Result<Container> opened = Container::open(folder);
      ASSERT_FALSE(opened.ok());
      EXPECT_EQ(opened.error().kind, ErrorKind::bad_input);
      EXPECT_THAT(opened.error().message, HasSubstr(std::string(name) + ": wanted a regular file"));
      EXPECT_THAT(Container::verify(folder),
                  testing::Contains(HasSubstr(std::string(name) + ": wanted a regular file")));
    }
  }
}

TEST_F(ContainerTest, a_git_lfs_pointer_in_the_place_of_a_file_is_told) {
  for (const char* name :
       {"glmd.json", "config.json", "generation_config.json", "tokenizer.json",
        "dense-00000.safetensors", "experts-001.safetensors", "mtp-00000.safetensors"}) {
    SCOPED_TRACE(name);
    const std::string folder = copy();
    test::write_text(folder + "/" + name,
                     "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
    const std::string wanted = std::string(name) + ": a Git LFS pointer of 70 bytes";
    const Result<Container> opened = Container::open(folder);
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().kind, ErrorKind::bad_input);
    EXPECT_THAT(opened.error().message, HasSubstr(wanted));
    EXPECT_THAT(Container::verify(folder), testing::Contains(HasSubstr(wanted)));
  }
}

struct BrokenContainer {
  const char* what;
  std::function<void(const std::string& folder)> spoil;
  const char* message;
  ErrorKind kind = ErrorKind::bad_input;
};

TEST_F(ContainerTest, a_broken_container_ends_in_one_clear_line) {
  const auto manifest = [](const char* from, const char* to) {
    return [from, to](const std::string& folder) { replace(folder + "/glmd.json", from, to); };
  };
  const auto config = [](const char* from, const char* to) {
    return [from, to](const std::string& folder) {
      test::forget_accompanying(folder);
      replace(folder + "/config.json", from, to);
    };
  };
  const std::string dense = "/dense-00000.safetensors";
  const std::vector<BrokenContainer> table = {
      {"no glmd.json", [](auto& f) { std::filesystem::remove(f + "/glmd.json"); },
       "wanted glmd.json", ErrorKind::not_found},
      {"no folder", [](auto& f) { std::filesystem::remove_all(f); }, "wanted glmd.json",
       ErrorKind::not_found},
      {"no config.json", [](auto& f) { std::filesystem::remove(f + "/config.json"); },
       "config.json", ErrorKind::not_found},
      {"empty glmd.json", [](auto& f) { test::write_text(f + "/glmd.json", ""); },
       "not valid JSON"},
      {"glmd.json cut off", [](auto& f) { std::filesystem::resize_file(f + "/glmd.json", 1000); },
       "not valid JSON"},
      {"glmd.json deep",
       [](auto& f) { test::write_text(f + "/glmd.json", std::string(1 << 20, '{')); }, "glmd.json"},
      {"glmd.json a list", [](auto& f) { test::write_text(f + "/glmd.json", "[]"); },
       "wanted an object"},
      {"newer version", manifest("\"format_version\":1", "\"format_version\":2"),
       "has format version 2, this glmd reads format version 1; use a newer glmd"},
      {"older version", manifest("\"format_version\":1", "\"format_version\":0"),
       "has format version 0, this glmd reads format version 1; convert"},
      {"version a string", manifest("\"format_version\":1", "\"format_version\":\"1\""),
       "format_version: wanted an integer"},
      {"other family", manifest("glm_moe_dsa", "glm5_next"), "family: wanted \"glm_moe_dsa\""},
      {"no policy", manifest("\"policy\"", "\"police\""), "policy: wanted an object, got nothing"},
      {"epsilon zero", manifest("\"latent_norm_eps\":1e-05", "\"latent_norm_eps\":0"),
       "latent_norm_eps"},
      {"epsilon null", manifest("\"latent_norm_eps\":1e-05", "\"latent_norm_eps\":null"),
       "latent_norm_eps"},
      {"other table", manifest("-63,-49", "-63,-48"), "tables: wanted the nl4 and nl5 tables"},
      {"draft layer denied", manifest("\"draft_layer\":true", "\"draft_layer\":false"),
       "config.json has no use for it"},
      {"draft layer a number", manifest("\"draft_layer\":true", "\"draft_layer\":1"),
       "draft_layer: wanted true or false"},
      {"identity", manifest("\"identity\":\"", "\"identity\":\"0"), "identity: wanted"},
      {"unknown layout", manifest("\"layout\":\"embedding\"", "\"layout\":\"carpet\""),
       "layout: wanted a known layout, got \"carpet\""},
      {"unknown format", manifest("\"format\":\"q8\"", "\"format\":\"q9\""),
       "format: wanted a known block format, got \"q9\""},
      {"other format", manifest("\"format\":\"q8\"", "\"format\":\"f32\""),
       "wanted 266240 bytes, got 141440"},
      {"impossible format",
       manifest("\"layout\":\"embedding\",\"format\":\"q8\"",
                "\"layout\":\"embedding\",\"format\":\"nl4\""),
       "embedding: format"},
      {"other layout", manifest("\"layout\":\"embedding\"", "\"layout\":\"matrix\""),
       "embedding: layout: wanted embedding, got matrix"},
      {"negative rows", manifest("\"rows\":4160", "\"rows\":-4160"),
       "rows: wanted a size, got -4160"},
      {"rows 2^63", manifest("\"rows\":4160", "\"rows\":9223372036854775808"),
       "rows: wanted a size"},
      {"other rows", manifest("\"rows\":4160", "\"rows\":9223372036854775807"),
       "embedding: shape: wanted [4160, 16]"},
      {"hash not hexadecimal", manifest("\"hash\":\"", "\"hash\":\"x"),
       "hash: wanted 16 hexadecimal digits"},
      {"changed hash",
       [](auto& f) {
         std::string text = test::read_text(f + "/glmd.json");
         const size_t at = text.find("\"hash\":\"", text.find("\"tensors\":")) + 8;
         text[at] = text[at] == '0' ? '1' : '0';
         test::write_text(f + "/glmd.json", text);
       },
       "identity: wanted"},
      {"renamed tensor", manifest("\"head\":{", "\"haed\":{"), "identity: wanted"},
      {"tensor twice", manifest("\"head\":{", "\"embedding\":{"), "tensor embedding: stands twice"},
      {"tensors a list",
       [](auto& f) {
         std::string text = test::read_text(f + "/glmd.json");
         text = text.substr(0, text.find("\"tensors\":")) + "\"tensors\":[]}";
         test::write_text(f + "/glmd.json", text);
       },
       "tensors: wanted an object, got []"},
      {"file elsewhere",
       manifest("\"name\":\"dense-00000.safetensors\"", "\"name\":\"../dense-00000.safetensors\""),
       "files: name"},
      {"file twice",
       manifest("\"name\":\"mtp-00000.safetensors\"", "\"name\":\"dense-00000.safetensors\""),
       "files: wanted each file once"},
      {"no files", manifest("\"files\":[{\"name\":\"dense", "\"filed\":[{\"name\":\"dense"),
       "files: wanted"},
      {"extra file",
       [](auto& f) {
         std::filesystem::copy_file(f + "/experts-001.safetensors", f + "/experts-009.safetensors");
       },
       "experts-009.safetensors: not one of the"},
      {"missing file", [](auto& f) { std::filesystem::remove(f + "/experts-002.safetensors"); },
       "experts-002.safetensors", ErrorKind::not_found},
      {"truncated file", [&](auto& f) { std::filesystem::resize_file(f + dense, 4097); },
       "dense-00000.safetensors: size: wanted"},
      {"empty file", [&](auto& f) { std::filesystem::resize_file(f + dense, 0); }, "size: wanted"},
      {"longer file",
       [](auto& f) {
         test::write_text(f + "/experts-001.safetensors",
                          test::read_text(f + "/experts-001.safetensors") + "x");
       },
       "size: wanted"},
      {"header overwritten",
       [&](auto& f) {
         std::string text = test::read_text(f + dense);
         std::fill_n(text.begin(), 64, '\xff');
         test::write_text(f + dense, text);
       },
       "safetensors header"},
      {"offsets overlap",
       [&](auto& f) { replace(f + dense, "\"data_offsets\":[0,", "\"data_offsets\":[1,"); },
       "dense-00000.safetensors"},
      {"swapped files",
       [](auto& f) {
         const std::string a = test::read_text(f + "/experts-001.safetensors"),
                           b = test::read_text(f + "/dense-00000.safetensors");
         test::write_text(f + "/experts-001.safetensors", b);
         test::write_text(f + "/dense-00000.safetensors", a);
       },
       "size: wanted"},
      {"tensor of another name",
       [](auto& f) {
         replace(f + "/experts-001.safetensors", "layers.1.experts.0", "layers.1.experts.9");
       },
       "tensor layers.1.experts.9: glmd.json does not know it"},
      {"config of more layers", config("\"num_hidden_layers\":2", "\"num_hidden_layers\":3"),
       "indexer_types"},
      {"config of more experts", config("\"n_routed_experts\":4", "\"n_routed_experts\":5"),
       "shape: wanted [5, 16], got [4, 16]"},
      {"config of a wider model", config("\"hidden_size\":16", "\"hidden_size\":17"),
       "shape: wanted"},
      {"config without a draft layer",
       config("\"num_nextn_predict_layers\":1", "\"num_nextn_predict_layers\":0"),
       "num_nextn_predict_layers: wanted 1"},
      {"config of size 2^31", config("\"hidden_size\":16", "\"hidden_size\":2147483648"),
       "hidden_size: wanted an integer"},
      {"config with a full indexer too few", config("[\"full\",\"shared\"]", "[\"full\",\"full\"]"),
       "layers.1.indexer.q_b: missing"},
      {"config that is bare",
       [](auto& f) {
         test::forget_accompanying(f);
         test::write_text(f + "/config.json", "{a:1}");
       },
       "not valid JSON"},
      {"accompanying a number", manifest("\"accompanying\":[", "\"accompanying\":1,\"x\":["),
       "accompanying: wanted a list of files, got 1"},
      {"accompanying file elsewhere", manifest("\"name\":\"config.json\"", "\"name\":\"../x\""),
       "accompanying: name: wanted one that we take over, got \"../x\""},
      {"accompanying file twice",
       manifest("\"name\":\"tokenizer.json\"", "\"name\":\"config.json\""),
       "accompanying: wanted each file once"},
  };
  for (const BrokenContainer& broken : table) {
    SCOPED_TRACE(broken.what);
    const std::string folder = copy();
    broken.spoil(folder);
    const Result<Container> opened = Container::open(folder);
    ASSERT_FALSE(opened.ok());
    EXPECT_THAT(opened.error().message, HasSubstr(broken.message));
    EXPECT_THAT(opened.error().message, HasSubstr(folder));
    EXPECT_EQ(opened.error().message.find('\n'), std::string::npos);
    EXPECT_EQ(opened.error().kind, broken.kind) << opened.error().message;
    EXPECT_THAT(Container::verify(folder), testing::Not(testing::IsEmpty()));
  }
}

}  // namespace
}  // namespace glmd
