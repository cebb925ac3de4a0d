// The converter: values are kept, every run gives the same bytes, a broken-off run goes on, and
// what is wrong with a checkpoint is said in one line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "kernels/block_encoder.h"
#include "storage/container.h"
#include "storage/tensor_inventory.h"
#include "tests/convert/tiny_checkpoint.h"
#include "tools/convert/converter.h"

namespace glmd {
namespace {

using test::TemporaryFolder;
using test::TinyCheckpoint;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Policies exact{.experts = Policy::exact, .dense = Policy::exact};

Result<void> convert_quietly(const std::string& source, const std::string& target,
                             Policies policies = {}, int threads = 1,
                             std::vector<std::string> ignored = {}) {
  return convert({.source = source,
                  .target = target,
                  .policies = policies,
                  .ignored = std::move(ignored),
                  .threads = threads},
                 [](const ConvertProgress&) { return true; });
}

// What is said, or the error.
std::string notes_of_converting(const std::string& source, const std::string& target,
                                std::vector<std::string> ignored = {}) {
  std::string notes;
  const Result<void> converted = convert(
      {.source = source, .target = target, .policies = exact, .ignored = std::move(ignored)},
      [&](const ConvertProgress& progress) {
        if (!progress.note.empty()) notes += progress.note + "\n";
        return true;
      });
  EXPECT_TRUE(converted.ok()) << converted.error().message;
  return notes;
}

std::vector<uint8_t> read_tensor(const Container& container, const std::string& name) {
  const Tensor* tensor = container.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  std::vector<uint8_t> bytes(static_cast<size_t>(tensor->bytes));
  EXPECT_TRUE(container.read(*tensor, bytes).ok());
  return bytes;
}

// The values of a stored tensor of layout matrix, vector or embedding.
std::vector<float> decode(const Container& container, const std::string& name) {
  const std::vector<uint8_t> bytes = read_tensor(container, name);
  const Tensor& tensor = *container.find(name);
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.columns));
  if (tensor.layout == TensorLayout::embedding) {
    decode_embedding(tensor.format, bytes.data(), tensor.rows, tensor.columns, values.data());
  } else {
    decode_matrix(tensor.format, bytes.data(), tensor.rows, tensor.columns, values.data());
  }
  return values;
}

std::vector<float> decode_pair(BlockFormat format, const uint8_t* bytes, int64_t rows,
                               int64_t columns) {
  std::vector<float> values(static_cast<size_t>(2 * rows * columns));
  decode_gate_up(format, bytes, rows, columns, values.data(), values.data() + rows * columns);
  return values;
}

std::vector<float> joined(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class ConvertDtype : public testing::TestWithParam<const char*> {};

// "F8_E4M3 channel": compressed-tensors with that strategy.
TinyCheckpoint make_checkpoint(const std::string& kind) {
  const size_t space = kind.find(' ');
  TinyCheckpoint tiny = TinyCheckpoint::make(kind.substr(0, space));
  if (space != std::string::npos) tiny.use_compressed_tensors(kind.substr(space + 1));
  return tiny;
}

TEST_P(ConvertDtype, exact_keeps_every_value_bit_for_bit) {
  const TinyCheckpoint tiny = make_checkpoint(GetParam());
  const TemporaryFolder folder;
  tiny.write(folder / "source");
  const Result<void> converted = convert_quietly(folder / "source", folder / "target", exact, 2);
  ASSERT_TRUE(converted.ok()) << converted.error().message;
  const Result<Container> opened = Container::open(folder / "target");
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const Container& container = opened.value();
  EXPECT_TRUE(container.is_reference());
  EXPECT_EQ(container.checkpoint().draft_layers, 1);

  EXPECT_TRUE(same_bits(decode(container, "embedding"), tiny.values("model.embed_tokens.weight")));
  EXPECT_TRUE(same_bits(decode(container, "head"), tiny.values("lm_head.weight")));
  EXPECT_TRUE(same_bits(decode(container, "norm"), tiny.values("model.norm.weight")));
  EXPECT_TRUE(same_bits(decode(container, "layers.2.eh_proj"),
                        tiny.values("model.layers.2.eh_proj.weight")));
  EXPECT_TRUE(same_bits(decode(container, "layers.1.router"),
                        tiny.values("model.layers.1.mlp.gate.weight")));
  for (int layer = 0; layer < 3; ++layer) {
    const std::string ours = fmt::format("layers.{}.", layer);
    const std::string theirs = fmt::format("model.layers.{}.", layer);
    EXPECT_TRUE(same_bits(decode(container, ours + "attention.q_a"),
                          tiny.values(theirs + "self_attn.q_a_proj.weight")));
    EXPECT_TRUE(same_bits(decode(container, ours + "attention.kv_a"),
                          tiny.values(theirs + "self_attn.kv_a_proj_with_mqa.weight")));
    EXPECT_TRUE(same_bits(decode(container, ours + "attention.o"),
                          tiny.values(theirs + "self_attn.o_proj.weight")));

    const std::vector<float> kv_b = tiny.values(theirs + "self_attn.kv_b_proj.weight");
    const std::vector<float> k_b = decode(container, ours + "attention.k_b");
    const std::vector<float> v_b = decode(container, ours + "attention.v_b");
    const auto at = [&](int head, int row, int column) {
      return kv_b[static_cast<size_t>((head * 11 + row) * 9 + column)];
    };
    for (int head = 0; head < 2; ++head) {
      for (int c = 0; c < 9; ++c) {
        for (int i = 0; i < 6; ++i)
          EXPECT_EQ(k_b[static_cast<size_t>((head * 9 + c) * 6 + i)], at(head, i, c));
        for (int i = 0; i < 5; ++i)
          EXPECT_EQ(v_b[static_cast<size_t>((head * 5 + i) * 9 + c)], at(head, 6 + i, c));
      }
    }
    if (layer == 0) continue;
    for (int expert = 0; expert < 4; ++expert) {
      const std::string name = fmt::format("{}experts.{}", ours, expert);
      const std::string mlp = fmt::format("{}mlp.experts.{}.", theirs, expert);
      const std::vector<uint8_t> bytes = read_tensor(container, name);
      const BlockFormat format = container.find(name)->format;
      EXPECT_TRUE(same_bits(
          decode_pair(format, bytes.data(), 12, 16),
          joined(tiny.values(mlp + "gate_proj.weight"), tiny.values(mlp + "up_proj.weight"))));
      std::vector<float> down(16 * 12);
      decode_matrix(format, bytes.data() + expert_down_offset(format, 12, 16), 16, 12, down.data());
      EXPECT_TRUE(same_bits(down, tiny.values(mlp + "down_proj.weight")));
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, ConvertDtype,
                         testing::Values("BF16", "F16", "F32", "F8_E4M3", "F8_E4M3 block",
                                         "F8_E4M3 channel", "F8_E4M3 tensor"));

TEST(Convert, block_scales_multiply_under_either_name) {
  TinyCheckpoint tiny = TinyCheckpoint::make("F8_E4M3");
  const TemporaryFolder folder;
  tiny.write(folder / "a");
  const std::map<std::string, test::TinyTensor> before = tiny.tensors;
  for (const auto& [name, tensor] : before) {
    if (!name.ends_with("_scale_inv")) continue;
    tiny.tensors.erase(name);
    tiny.tensors[name.substr(0, name.size() - 4)] = tensor;
  }
  tiny.write(folder / "b");
  notes_of_converting(folder / "a", folder / "one");
  notes_of_converting(folder / "b", folder / "two");
  EXPECT_EQ(Container::open(folder / "one").value().identity(),
            Container::open(folder / "two").value().identity());
}

TEST(Convert, scales_of_activations_are_left_out_and_said) {
  TinyCheckpoint tiny = TinyCheckpoint::make("F8_E4M3");
  tiny.use_compressed_tensors("tensor");
  const TemporaryFolder folder;
  tiny.write(folder / "a");
  tiny.add("model.layers.0.self_attn.q_a_proj.input_scale", "F32", {1});
  tiny.add("model.layers.0.self_attn.k_scale", "F32", {1});
  tiny.write(folder / "b");
  EXPECT_EQ(notes_of_converting(folder / "a", folder / "one").find("activations"),
            std::string::npos);
  EXPECT_THAT(notes_of_converting(folder / "b", folder / "two"),
              HasSubstr("b: 2 scales of activations left out: glmd does not quantise them so"));
  EXPECT_EQ(Container::open(folder / "one").value().identity(),
            Container::open(folder / "two").value().identity());
}

TEST(Convert, gate_and_up_of_different_dtypes_become_f32_in_exact) {
  TinyCheckpoint tiny = TinyCheckpoint::make();
  tiny.add("model.layers.0.mlp.up_proj.weight", "F16", {20, 16});
  const TemporaryFolder folder;
  tiny.write(folder / "source");
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "target", exact).ok());
  const Container container = Container::open(folder / "target").value();
  EXPECT_EQ(container.find("layers.0.mlp.gate_up")->format, BlockFormat::f32);
  EXPECT_TRUE(same_bits(
      decode_pair(BlockFormat::f32, read_tensor(container, "layers.0.mlp.gate_up").data(), 20, 16),
      joined(tiny.values("model.layers.0.mlp.gate_proj.weight"),
             tiny.values("model.layers.0.mlp.up_proj.weight"))));
}

TEST(Convert, the_default_policy_gives_each_kind_its_format) {
  const TemporaryFolder folder;
  TinyCheckpoint::make("F8_E4M3").write(folder / "source");
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "target").ok());
  const Container container = Container::open(folder / "target").value();
  EXPECT_FALSE(container.is_reference());
  const auto format = [&](const std::string& name) {
    return std::string(format_name(container.find(name)->format));
  };
  EXPECT_EQ(format("layers.1.experts.3"), "nl4");
  EXPECT_EQ(format("layers.2.experts.3"), "q8");
  EXPECT_EQ(format("layers.1.attention.k_b"), "nl5");
  EXPECT_EQ(format("layers.1.shared.down"), "nl5");
  EXPECT_EQ(format("layers.0.mlp.gate_up"), "nl5");
  EXPECT_EQ(format("layers.2.attention.q_a"), "q8");
  EXPECT_EQ(format("layers.2.eh_proj"), "q8");
  EXPECT_EQ(format("layers.0.indexer.weights"), "q8");
  EXPECT_EQ(format("embedding"), "q8");
  EXPECT_EQ(format("head"), "q8");
  EXPECT_EQ(format("layers.1.router"), "bf16");
  EXPECT_EQ(format("layers.1.router_bias"), "f32");
}

// Encoding in parts on several threads must equal encoding the matrix at once.
TEST(Convert, quantised_tensors_are_the_encodings_of_the_whole_matrix) {
  const TinyCheckpoint tiny = TinyCheckpoint::make("F8_E4M3");
  const TemporaryFolder folder;
  tiny.write(folder / "source");
  for (const Policy dense : {Policy::nl4, Policy::nl5, Policy::q8}) {
    const std::string target = folder / policy_name(dense);
    ASSERT_TRUE(
        convert_quietly(folder / "source", target, {.experts = Policy::q8, .dense = dense}, 3)
            .ok());
    const Container container = Container::open(target).value();
    const Tensor& matrix = *container.find("layers.0.attention.q_b");
    std::vector<uint8_t> wanted(static_cast<size_t>(matrix.bytes));
    encode_matrix(matrix.format, tiny.values("model.layers.0.self_attn.q_b_proj.weight").data(), 20,
                  10, wanted.data());
    EXPECT_EQ(read_tensor(container, matrix.name), wanted);
    const Tensor& pair = *container.find("layers.1.shared.gate_up");
    wanted.assign(static_cast<size_t>(pair.bytes), 0);
    encode_gate_up(pair.format,
                   tiny.values("model.layers.1.mlp.shared_experts.gate_proj.weight").data(),
                   tiny.values("model.layers.1.mlp.shared_experts.up_proj.weight").data(), 24, 16,
                   wanted.data());
    EXPECT_EQ(read_tensor(container, pair.name), wanted);
  }
}

TEST(Convert, threads_and_shards_do_not_change_a_byte_of_the_weights) {
  const TinyCheckpoint tiny = TinyCheckpoint::make("F8_E4M3");
  const TemporaryFolder folder;
  tiny.write(folder / "source");
  tiny.write(folder / "sharded", 3);
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "one", {}, 1).ok());
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "two", {}, 2).ok());
  ASSERT_TRUE(convert_quietly(folder / "sharded", folder / "three", {}, 4).ok());
  EXPECT_EQ(test::read_folder(folder / "one"), test::read_folder(folder / "two"));
  EXPECT_EQ(Container::open(folder / "one").value().identity(),
            Container::open(folder / "three").value().identity());
}

TEST(Convert, fused_experts_are_read_like_single_ones) {
  TinyCheckpoint tiny = TinyCheckpoint::make();
  const TemporaryFolder folder;
  tiny.write(folder / "single");
  tiny.fuse_experts();
  tiny.write(folder / "fused");
  ASSERT_TRUE(convert_quietly(folder / "single", folder / "a").ok());
  const Result<void> fused = convert_quietly(folder / "fused", folder / "b");
  ASSERT_TRUE(fused.ok()) << fused.error().message;
  EXPECT_EQ(Container::open(folder / "a").value().identity(),
            Container::open(folder / "b").value().identity());
}

TEST(Convert, a_run_broken_off_anywhere_goes_on_to_the_same_bytes) {
  const TemporaryFolder folder;
  TinyCheckpoint::make().write(folder / "source");
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "whole").ok());
  const auto wanted = test::read_folder(folder / "whole");
  int64_t kept_max = 0;
  for (int stop_after = 1;; ++stop_after) {
    const std::string target = folder / fmt::format("target{}", stop_after);
    const ConvertOptions options{
        .source = folder / "source", .target = target, .policies = {}, .ignored = {}};
    int calls = 0;
    const Result<void> broken =
        convert(options, [&](const ConvertProgress&) { return ++calls < stop_after; });
    if (broken.ok()) break;
    EXPECT_EQ(broken.error().kind, ErrorKind::cancelled);
    EXPECT_FALSE(std::filesystem::exists(target));
    // As after a kill in the middle of the journal's next line.
    std::filesystem::path journal = target + ".partial/conversion.journal";
    test::write_text(journal.string(), test::read_text(journal.string()) + R"({"file":"experts-0)");
    const Result<void> resumed = convert(options, [&](const ConvertProgress& progress) {
      kept_max = std::max(kept_max, progress.bytes_kept);
      return true;
    });
    ASSERT_TRUE(resumed.ok()) << resumed.error().message;
    EXPECT_EQ(test::read_folder(target), wanted) << "stopped after " << stop_after;
    EXPECT_FALSE(std::filesystem::exists(target + ".partial"));
  }
  EXPECT_GT(kept_max, 0);
}

TEST(Convert, a_finished_file_that_was_spoilt_is_made_again) {
  const TemporaryFolder folder;
  TinyCheckpoint::make().write(folder / "source");
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "whole").ok());
  const ConvertOptions options{
      .source = folder / "source", .target = folder / "target", .policies = {}, .ignored = {}};
  ASSERT_FALSE(
      convert(options, [](const ConvertProgress& p) { return p.bytes_done < p.bytes_total; }).ok());
  const std::string spoilt = folder / "target.partial/experts-001.safetensors";
  std::string text = test::read_text(spoilt);
  text[text.size() / 2] = static_cast<char>(text[text.size() / 2] ^ 1);
  test::write_text(spoilt, text);
  std::string notes;
  ASSERT_TRUE(convert(options, [&](const ConvertProgress& p) {
                notes += p.note;
                return true;
              }).ok());
  EXPECT_THAT(notes, HasSubstr("experts-001.safetensors: not as it was written"));
  EXPECT_EQ(test::read_folder(folder / "target"), test::read_folder(folder / "whole"));
}

TEST(Convert, a_target_that_could_not_be_renamed_to_is_refused_before_a_byte_is_written) {
  const TemporaryFolder folder;
  TinyCheckpoint::make().write(folder / "source");
  std::filesystem::create_directory(folder / "real");
  std::filesystem::create_directory_symlink(folder / "real", folder / "link");
  const auto refusal = [&](const std::string& target) {
    const Result<void> result = convert_quietly(folder / "source", target);
    EXPECT_FALSE(result.ok());
    EXPECT_FALSE(std::filesystem::exists(target + ".partial"));
    if (result.ok()) return std::string();
    EXPECT_EQ(result.error().kind, ErrorKind::usage);
    return result.error().message;
  };
  EXPECT_THAT(refusal("/proc/"), HasSubstr("TARGET /proc: wanted a folder inside of it, "
                                           "/proc/NAME, got a mount point"));
  EXPECT_THAT(refusal(folder / "link"), HasSubstr("got a symbolic link"));
  EXPECT_THAT(refusal(""), HasSubstr("wanted the name of a folder to make"));
  EXPECT_THAT(refusal(folder / "."), HasSubstr("wanted the name of a folder to make"));
  EXPECT_TRUE(convert_quietly(folder / "source", folder / "real").ok());
}

TEST(Convert, the_files_beside_the_tensors_are_recorded_and_compared) {
  const TemporaryFolder folder;
  TinyCheckpoint::make().write(folder / "source");
  test::write_text(folder / "source/chat_template.jinja", "{{ messages }}");
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "target").ok());
  EXPECT_THAT(test::read_text(folder / "target/glmd.json"),
              HasSubstr("{\"name\":\"chat_template.jinja\",\"bytes\":14,\"hash\":\""));
  test::write_text(folder / "source/chat_template.jinja", "{{ tools }}   ");
  const Result<void> other = convert_quietly(folder / "source", folder / "target");
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("converted from another source"));
}

TEST(Convert, a_changed_source_starts_anew) {
  TinyCheckpoint tiny = TinyCheckpoint::make();
  const TemporaryFolder folder;
  tiny.write(folder / "source");
  const ConvertOptions options{
      .source = folder / "source", .target = folder / "target", .policies = {}, .ignored = {}};
  int64_t seen = 0;
  ASSERT_FALSE(convert(options, [&](const ConvertProgress& p) {
                 return (seen = p.bytes_done) < 40000;
               }).ok());
  tiny.tensors.at("lm_head.weight").bytes[0] ^= 1;
  tiny.write(folder / "source");
  std::filesystem::last_write_time(
      folder / "source/model.safetensors",
      std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  std::string notes;
  ASSERT_TRUE(convert(options, [&](const ConvertProgress& p) {
                notes += p.note;
                return true;
              }).ok());
  EXPECT_THAT(notes, HasSubstr("starting anew"));
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "other").ok());
  EXPECT_EQ(test::read_folder(folder / "target"), test::read_folder(folder / "other"));
}

TEST(Convert, a_whole_target_is_kept_and_a_strange_one_not_touched) {
  const TemporaryFolder folder;
  TinyCheckpoint::make().write(folder / "source");
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "target").ok());
  EXPECT_TRUE(convert_quietly(folder / "source", folder / "target").ok());
  const Result<void> other = convert_quietly(folder / "source", folder / "target", exact);
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("remove it first"));
  const Result<void> strange = convert_quietly(folder / "source", folder / "source");
  ASSERT_FALSE(strange.ok());
  EXPECT_THAT(strange.error().message, HasSubstr("not touched"));
}

// A fine-tune: the same names and sizes, other values.
TEST(Convert, other_weights_under_the_same_names_are_another_source) {
  const TemporaryFolder folder;
  TinyCheckpoint tiny = TinyCheckpoint::make();
  tiny.write(folder / "source");
  std::filesystem::create_directory(folder / "alt");
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "target").ok());
  const auto before = test::read_folder(folder / "target");
  tiny.tensors.at("lm_head.weight").bytes[0] ^= 1;
  tiny.write(folder / "alt/source");
  std::filesystem::last_write_time(
      folder / "alt/source/model.safetensors",
      std::filesystem::last_write_time(folder / "source/model.safetensors") +
          std::chrono::seconds(1));
  const Result<void> other = convert_quietly(folder / "alt/source", folder / "target");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().kind, ErrorKind::usage);
  EXPECT_THAT(other.error().message,
              HasSubstr("converted from another source (its files are of another size or time)"));
  EXPECT_EQ(test::read_folder(folder / "target"), before);
}

TEST(Convert, a_whole_target_is_of_the_options_it_was_made_with) {
  const TemporaryFolder folder;
  TinyCheckpoint tiny = TinyCheckpoint::make();
  tiny.write(folder / "source");
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "target").ok());
  const Result<void> ignoring =
      convert_quietly(folder / "source", folder / "target", {}, 1, {"model.layers.2.*"});
  ASSERT_FALSE(ignoring.ok());
  EXPECT_THAT(ignoring.error().message, HasSubstr("converted with other options (--ignore)"));
  // A copy that does not say what it was made from.
  std::filesystem::remove(folder / "target/conversion.json");
  const Result<void> unknown = convert_quietly(folder / "source", folder / "target");
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().message, HasSubstr("conversion.json is not there"));
  EXPECT_TRUE(Container::open(folder / "target").ok());
}

TEST(Convert, times_of_the_source_are_no_part_of_the_container) {
  const TemporaryFolder folder;
  TinyCheckpoint::make().write(folder / "source");
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "one").ok());
  std::filesystem::last_write_time(
      folder / "source/model.safetensors",
      std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "two").ok());
  auto one = test::read_folder(folder / "one"), two = test::read_folder(folder / "two");
  EXPECT_NE(one.at("conversion.json"), two.at("conversion.json"));
  one.erase("conversion.json");
  two.erase("conversion.json");
  EXPECT_EQ(one, two);
}

TEST(Convert, room_is_asked_for_before_a_folder_is_made) {
  const TemporaryFolder folder;
  TinyCheckpoint::make().write(folder / "source");
  const Result<void> result = convert_quietly(folder / "source", "/proc/target");  // 0 bytes free
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::io);
  EXPECT_THAT(result.error().message, HasSubstr("/proc: free space: wanted"));
}

TEST(Convert, a_strange_partial_folder_is_not_touched) {
  const TemporaryFolder folder;
  TinyCheckpoint::make().write(folder / "source");
  std::filesystem::create_directory(folder / "target.partial");
  test::write_text(folder / "target.partial/letter", "mine");
  const Result<void> result = convert_quietly(folder / "source", folder / "target");
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("not touched"));
  EXPECT_EQ(test::read_text(folder / "target.partial/letter"), "mine");
}

// What converting the embedded model says after `change` was made to one of its texts.
std::vector<std::string> notes_on_embedded(const TemporaryFolder& folder, const std::string& name,
                                           const std::function<void(Json&)>& change) {
  std::filesystem::copy(GLMD_SOURCE_DIR "/models/mini", folder / "source");
  Json text = read_json_file(folder / "source/" + name, 64 << 20).value();
  change(text);
  test::write_text(folder / "source/" + name, text.to_string());
  std::vector<std::string> notes;
  const Result<void> converted = convert(
      {.source = folder / "source", .target = folder / "target", .policies = {}, .ignored = {}},
      [&](const ConvertProgress& progress) {
        if (!progress.note.empty()) notes.push_back(progress.note);
        return true;
      });
  EXPECT_TRUE(converted.ok());
  return notes;
}

TEST(Convert, what_is_ignored_of_a_tokenizer_is_said_once) {
  const TemporaryFolder folder;
  EXPECT_THAT(
      notes_on_embedded(folder, "tokenizer.json",
                        [](Json& tokenizer) { tokenizer.set("truncation", Json::object()); }),
      ElementsAre(folder / "source/tokenizer.json: truncation ignored"));
}

TEST(Convert, a_chat_template_that_is_not_rendered_is_said) {
  const TemporaryFolder folder;
  EXPECT_THAT(notes_on_embedded(folder, "tokenizer_config.json",
                                [&](Json& config) {
                                  std::filesystem::remove(folder / "source/chat_template.jinja");
                                  config.set("chat_template", Json::string("{{ messages }}"));
                                }),
              ElementsAre(HasSubstr("tokenizer_config.json: not the chat template of GLM-5.2")));
}

TEST(Convert, an_absent_draft_layer_is_said) {
  TinyCheckpoint tiny = TinyCheckpoint::make();
  std::erase_if(tiny.tensors,
                [](const auto& item) { return item.first.starts_with("model.layers.2."); });
  const TemporaryFolder folder;
  tiny.write(folder / "source");
  std::string notes;
  ASSERT_TRUE(
      convert(
          {.source = folder / "source", .target = folder / "target", .policies = {}, .ignored = {}},
          [&](const ConvertProgress& p) {
            notes += p.note;
            return true;
          })
          .ok());
  EXPECT_THAT(notes, HasSubstr("draft layer"));
  EXPECT_EQ(Container::open(folder / "target").value().checkpoint().draft_layers, 0);
}

TEST(Convert, the_draft_layers_own_embedding_and_head_are_taken) {
  TinyCheckpoint tiny = TinyCheckpoint::make();
  tiny.add("model.layers.2.embed_tokens.weight", "BF16", {24, 16});
  tiny.add("model.layers.2.shared_head.head.weight", "BF16", {24, 16});
  const TemporaryFolder folder;
  tiny.write(folder / "source");
  ASSERT_TRUE(convert_quietly(folder / "source", folder / "target", exact).ok());
  const Container container = Container::open(folder / "target").value();
  EXPECT_TRUE(same_bits(decode(container, "layers.2.head"),
                        tiny.values("model.layers.2.shared_head.head.weight")));
}

TEST(Convert, ignored_tensors_are_as_if_not_there) {
  TinyCheckpoint tiny = TinyCheckpoint::make();
  tiny.add("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2});
  const TemporaryFolder folder;
  tiny.write(folder / "source", 2);
  EXPECT_FALSE(convert_quietly(folder / "source", folder / "target").ok());
  EXPECT_TRUE(convert_quietly(folder / "source", folder / "target", {}, 1,
                              {"*.rotary_emb.*", "model.layers.2.*"})
                  .ok());
}

// An edited checkpoint: the changed tensors in a shard of their own, which the index names for
// them.
TEST(Convert, of_a_tensor_in_two_shards_the_copy_that_the_index_names_is_used) {
  const std::string name = "model.norm.weight";
  TinyCheckpoint tiny = TinyCheckpoint::make();
  const TemporaryFolder folder;
  tiny.write(folder / "source", 2);
  tiny.tensors.at(name).bytes[0] ^= 1;
  for (const char* overlay : {"a-overlay.safetensors", "z-overlay.safetensors"}) {
    test::write_safetensors(folder / "source" + "/" + overlay, {{name, tiny.tensors.at(name)}});
    const std::string index_path = folder / "source/model.safetensors.index.json";
    Json index = read_json_file(index_path, 1 << 20).value();
    Json map = *index.find("weight_map");
    map.set(name, Json::string(overlay));
    index.set("weight_map", map);
    test::write_text(index_path, index.to_string());
    const std::string target = folder / overlay;
    EXPECT_THAT(notes_of_converting(folder / "source", target),
                HasSubstr(": 1 tensor in two shards or more, the copy that "
                          "model.safetensors.index.json names is used"));
    EXPECT_TRUE(same_bits(decode(Container::open(target).value(), "norm"), tiny.values(name)));
    std::filesystem::remove(folder / "source" + "/" + overlay);
  }
}

TEST(Convert, an_index_that_decides_otherwise_is_another_source) {
  const std::string name = "model.norm.weight";
  TinyCheckpoint tiny = TinyCheckpoint::make();
  const TemporaryFolder folder;
  tiny.write(folder / "source", 2);
  const std::string index_path = folder / "source/model.safetensors.index.json";
  const std::string index = test::read_text(index_path);
  const size_t at = index.find("model-", index.find("\"" + name + "\""));
  const std::string first = "model-00001-of-00002.safetensors";
  const std::string other =
      index.substr(at, first.size()) == first ? "model-00002-of-00002.safetensors" : first;
  // Both shards have it, with other values.
  std::map<std::string, test::TinyTensor> shard;
  for (const auto& [tensor, value] : tiny.tensors) {
    if (tensor == name || index.find("\"" + tensor + "\":\"" + other) != std::string::npos)
      shard[tensor] = value;
  }
  shard.at(name).bytes[0] ^= 1;
  test::write_safetensors(folder / "source/" + other, shard);
  notes_of_converting(folder / "source", folder / "target");
  test::write_text(index_path, std::string(index).replace(at, first.size(), other));
  const Result<void> again = convert_quietly(folder / "source", folder / "target", exact);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message, HasSubstr("converted from another source"));
}

TEST(Convert, a_draft_layer_in_a_file_that_nobody_lists_is_used) {
  for (const int shards : {1, 2}) {
    TinyCheckpoint tiny = TinyCheckpoint::make("F8_E4M3");
    const TemporaryFolder folder;
    tiny.write(folder / "whole");
    const auto draft = tiny.take("model.layers.2.");
    tiny.write(folder / "source", shards);
    test::write_safetensors(folder / "source/mtp.safetensors", draft);
    EXPECT_THAT(notes_of_converting(folder / "source", folder / "target"),
                HasSubstr("source/mtp.safetensors: used, though not listed"));
    notes_of_converting(folder / "whole", folder / "other");
    EXPECT_EQ(Container::open(folder / "target").value().identity(),
              Container::open(folder / "other").value().identity());
    // Its file is one of the source, whose change is seen.
    std::filesystem::last_write_time(
        folder / "source/mtp.safetensors",
        std::filesystem::last_write_time(folder / "source/config.json") + std::chrono::hours(1));
    const Result<void> again = convert_quietly(folder / "source", folder / "target", exact);
    ASSERT_FALSE(again.ok());
    EXPECT_THAT(again.error().message, HasSubstr("converted from another source"));
  }
}

TEST(Convert, a_file_that_nobody_lists_and_that_is_of_no_use_is_named) {
  const TinyCheckpoint tiny = TinyCheckpoint::make();
  const TemporaryFolder folder;
  tiny.write(folder / "source", 2);
  const auto norm = *tiny.tensors.find("model.norm.weight");
  test::write_safetensors(folder / "source/consolidated.safetensors", {norm});
  test::write_safetensors(folder / "source/adapter.safetensors", {{"lora_A.weight", norm.second}});
  test::write_safetensors(folder / "source/empty.safetensors", {});
  // Two files with one tensor that the model could use.
  for (const char* name : {"head-a", "head-b"}) {
    test::write_safetensors(folder / fmt::format("source/{}.safetensors", name),
                            {{"model.layers.2.shared_head.head.weight", norm.second}});
  }
  test::write_text(folder / "source/broken.safetensors", "short");
  const std::string notes = notes_of_converting(folder / "source", folder / "target");
  EXPECT_THAT(notes,
              HasSubstr("consolidated.safetensors: left out: tensor model.norm.weight is in "));
  EXPECT_THAT(notes, HasSubstr("adapter.safetensors: left out: config.json has no use for tensor "
                               "lora_A.weight"));
  EXPECT_THAT(notes, HasSubstr("empty.safetensors: left out: no tensor in it"));
  for (const char* name : {"head-a", "head-b"}) {
    EXPECT_THAT(notes, HasSubstr(fmt::format(
                           "{}.safetensors: left out: tensor "
                           "model.layers.2.shared_head.head.weight is in another file too",
                           name)));
  }
  EXPECT_THAT(notes, HasSubstr("broken.safetensors: left out: "));
  EXPECT_EQ(notes.find("used, though"), std::string::npos);
}

TEST(Convert, a_shard_that_changes_meanwhile_ends_the_conversion) {
  const TemporaryFolder folder;
  TinyCheckpoint::make().write(folder / "source");
  const std::string shard = folder / "source/model.safetensors";
  const Result<void> converted = convert(
      {.source = folder / "source", .target = folder / "target", .policies = {}, .ignored = {}},
      [&](const ConvertProgress& progress) {
        if (progress.bytes_done > 0)
          std::filesystem::last_write_time(shard, std::filesystem::file_time_type{});
        return true;
      });
  ASSERT_FALSE(converted.ok());
  EXPECT_THAT(converted.error().message,
              HasSubstr("model.safetensors: changed during the conversion"));
}

TEST(Convert, a_checkpoint_without_a_tokenizer_is_said) {
  const TemporaryFolder folder;
  TinyCheckpoint::make().write(folder / "source");
  EXPECT_THAT(notes_of_converting(folder / "source", folder / "target"),
              HasSubstr("source: no tokenizer.json: only fmt=tokens will be served"));
}

struct BrokenCheckpoint {
  const char* what;
  std::function<void(TinyCheckpoint&)> spoil;            // before writing
  std::function<void(const std::string&)> spoil_folder;  // after writing two shards
  const char* message;
  ErrorKind kind = ErrorKind::bad_input;
};

void set_float(test::TinyTensor& tensor, size_t index, float value) {
  std::memcpy(&tensor.bytes[index * 4], &value, 4);
}

TEST(Convert, a_broken_checkpoint_ends_in_one_clear_line) {
  constexpr const char* lfs_pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float inf = std::numeric_limits<float>::infinity();
  const std::string q_a = "model.layers.0.self_attn.q_a_proj.weight";
  const std::string second = "/model-00002-of-00002.safetensors";
  const std::string index = "/model.safetensors.index.json";
  const std::vector<BrokenCheckpoint> table = {
      {"NaN scale",
       [&](auto& t) { set_float(t.tensors[q_a + "_scale_inv"], 1, nan); },
       {},
       "q_a_proj.weight_scale_inv: wanted finite scales"},
      {"infinite scale",
       [&](auto& t) { set_float(t.tensors[q_a + "_scale_inv"], 0, -inf); },
       {},
       "q_a_proj.weight_scale_inv: wanted finite scales"},
      {"NaN code",
       [&](auto& t) { t.tensors[q_a].bytes[17] = 0x7f; },
       {},
       "q_a_proj.weight: row 1: wanted finite"},
      {"negative NaN code",
       [&](auto& t) { t.tensors[q_a].bytes[0] = 0xff; },
       {},
       "q_a_proj.weight: row 0: wanted finite"},
      {"overflowing scale",
       [&](auto& t) { set_float(t.tensors[q_a + "_scale_inv"], 0, 3e38F); },
       {},
       "q_a_proj.weight: row"},
      {"too large for q8",
       [&](auto& t) {
         set_float(t.tensors["model.layers.2.self_attn.q_a_proj.weight_scale_inv"], 0, 1e7F);
       },
       {},
       "layers.2.self_attn.q_a_proj.weight: row"},
      {"NaN norm",
       [](auto& t) {
         t.tensors["model.norm.weight"].bytes[1] = 0x7f,
         t.tensors["model.norm.weight"].bytes[0] = 0xc0;
       },
       {},
       "model.norm.weight: row 0"},
      {"NaN kv_b",
       [](auto& t) { t.tensors["model.layers.1.self_attn.kv_b_proj.weight"].bytes[9] = 0x7f; },
       {},
       "kv_b_proj.weight: row 1"},
      {"NaN expert",
       [](auto& t) { t.tensors["model.layers.1.mlp.experts.2.up_proj.weight"].bytes[5] = 0x7f; },
       {},
       "experts.2.up_proj.weight: row 0"},
      {"NaN down",
       [](auto& t) { t.tensors["model.layers.1.mlp.experts.2.down_proj.weight"].bytes[5] = 0x7f; },
       {},
       "experts.2.down_proj.weight: row 0"},
      {"infinite bias",
       [](auto& t) {
         set_float(t.tensors["model.layers.1.mlp.gate.e_score_correction_bias"], 3, inf);
       },
       {},
       "e_score_correction_bias: row 0"},
      {"no scales",
       [&](auto& t) { t.tensors.erase(q_a + "_scale_inv"); },
       {},
       "missing tensor model.layers.0.self_attn.q_a_proj.weight_scale_inv"},
      {"scales of a wrong shape",
       [&](auto& t) {
         t.add(q_a + "_scale_inv", "F32", {1, 2});
       },
       {},
       "q_a_proj.weight_scale_inv: shape: wanted [2, 2] (from config.json), got [1, 2]"},
      {"FP8 scales",
       [&](auto& t) {
         t.add(q_a + "_scale_inv", "F8_E4M3", {2, 2});
       },
       {},
       "q_a_proj.weight_scale_inv: dtype"},
      {"scales without FP8",
       [](auto& t) {
         t.add("lm_head.weight_scale_inv", "F32", {3, 2});
       },
       {},
       "unknown tensor lm_head.weight_scale_inv"},
      {"missing tensor",
       [](auto& t) { t.tensors.erase("model.norm.weight"); },
       {},
       "missing tensor model.norm.weight"},
      {"missing tensors",
       [](auto& t) {
         std::erase_if(t.tensors,
                       [](auto& i) { return i.first.find("experts.1.up") != std::string::npos; });
       },
       {},
       "missing tensor model.layers.1.mlp.experts.1.up_proj.weight and 1 more"},
      {"half a draft layer",
       [](auto& t) { t.tensors.erase("model.layers.2.eh_proj.weight"); },
       {},
       "missing tensor model.layers.2.eh_proj.weight"},
      {"unknown tensor",
       [](auto& t) { t.add("model.visual.weight", "BF16", {2}); },
       {},
       "unknown tensor model.visual.weight"},
      {"indexer of a shared layer",
       [](auto& t) {
         t.add("model.layers.1.self_attn.indexer.wk.weight", "BF16", {8, 16});
       },
       {},
       "unknown tensor model.layers.1.self_attn.indexer.wk.weight"},
      {"fifth expert",
       [](auto& t) {
         t.add("model.layers.1.mlp.experts.4.up_proj.weight", "BF16", {12, 16});
       },
       {},
       "unknown tensor model.layers.1.mlp.experts.4"},
      {"transposed",
       [&](auto& t) {
         t.tensors["lm_head.weight"].shape = {16, 24};
       },
       {},
       "lm_head.weight: shape: wanted [24, 16] (from config.json), got [16, 24]"},
      {"flat",
       [&](auto& t) { t.tensors["lm_head.weight"].shape = {384}; },
       {},
       "lm_head.weight: shape"},
      {"integer dtype",
       [&](auto& t) { t.tensors["lm_head.weight"].dtype = "I16"; },
       {},
       "lm_head.weight: dtype: wanted BF16, F16, F32 or F8_E4M3, got I16"},
      {"FP8 norm",
       [](auto& t) { t.add("model.norm.weight", "F8_E4M3", {16}); },
       {},
       "model.norm.weight: dtype"},
      {"other hidden size",
       [](auto& t) { t.config.set("hidden_size", Json::integer(32)); },
       {},
       "shape: wanted [24, 32] (from config.json), got [24, 16]"},
      {"other quantisation",
       [](auto& t) {
         t.config.set("quantization_config", parse_json(R"({"quant_method":"awq"})", "").value());
       },
       {},
       "quant_method: wanted \"fp8\" or \"compressed-tensors\", got \"awq\""},
      {"scales of another strategy",
       [&](auto& t) {
         t.use_compressed_tensors("channel");
         t.add(q_a + "_scale", "BF16", {2, 2});
       },
       {},
       "q_a_proj.weight_scale: shape: wanted [10, 1] (from config.json), got [2, 2]"},
      {"scales under both names",
       [&](auto& t) {
         t.add(q_a + "_scale", "F32", {2, 2});
       },
       {},
       "unknown tensor model.layers.0.self_attn.q_a_proj.weight_scale"},
      {"block size zero",
       [](auto& t) {
         t.config.set("quantization_config",
                      parse_json(R"({"weight_block_size":[0,8]})", "").value());
       },
       {},
       "weight_block_size"},
      {"missing shard",
       {},
       [&](auto& f) { std::filesystem::remove(f + second); },
       "model-00002-of-00002.safetensors: missing shard",
       ErrorKind::not_found},
      {"missing shard, no index",
       {},
       [&](auto& f) {
         std::filesystem::remove(f + second);
         std::filesystem::remove(f + index);
       },
       "model-00002-of-00002.safetensors: missing shard",
       ErrorKind::not_found},
      {"no weights",
       {},
       [&](auto& f) {
         std::filesystem::remove(f + second);
         std::filesystem::remove(f + index);
         std::filesystem::remove(f + "/model-00001-of-00002.safetensors");
       },
       "no weights",
       ErrorKind::not_found},
      {"no config",
       {},
       [&](auto& f) { std::filesystem::remove(f + "/config.json"); },
       "config.json",
       ErrorKind::not_found},
      {"truncated shard",
       {},
       [&](auto& f) { std::filesystem::resize_file(f + second, 9000); },
       second.c_str() + 1},
      {"empty shard",
       {},
       [&](auto& f) { std::filesystem::resize_file(f + second, 0); },
       "wanted at least 8 bytes, got 0"},
      {"shard as a folder",
       {},
       [&](auto& f) {
         std::filesystem::remove(f + second);
         std::filesystem::create_directory(f + second);
       },
       "model-00002-of-00002.safetensors: wanted a regular file"},
      {"another shard in the place of one",
       {},
       [&](auto& f) {
         std::filesystem::copy_file(f + second, f + "/model-00001-of-00002.safetensors",
                                    std::filesystem::copy_options::overwrite_existing);
       },
       "names it, the shard does not have it"},
      {"tensor in two shards, no index",
       {},
       [&](auto& f) {
         std::filesystem::copy_file(f + second, f + "/model-00001-of-00002.safetensors",
                                    std::filesystem::copy_options::overwrite_existing);
         std::filesystem::remove(f + index);
       },
       "has it too"},
      {"tensor in two shards that the index does not name",
       [&](auto& t) { t.tensors.erase("model.norm.weight"); },
       [&](auto& f) {
         const TinyCheckpoint whole = TinyCheckpoint::make();
         for (const char* shard : {"/a.safetensors", "/b.safetensors"})
           test::write_safetensors(f + shard, {*whole.tensors.find("model.norm.weight")});
       },
       "missing tensor model.norm.weight"},
      {"shard never downloaded",
       {},
       [&](auto& f) { test::write_text(f + second, lfs_pointer); },
       "model-00002-of-00002.safetensors: a Git LFS pointer of"},
      {"index never downloaded",
       {},
       [&](auto& f) { test::write_text(f + index, lfs_pointer); },
       "model.safetensors.index.json: a Git LFS pointer of"},
      {"config never downloaded",
       {},
       [&](auto& f) { test::write_text(f + "/config.json", lfs_pointer); },
       "config.json: a Git LFS pointer of"},
      {"tokenizer never downloaded",
       {},
       [&](auto& f) { test::write_text(f + "/tokenizer.json", lfs_pointer); },
       "tokenizer.json: a Git LFS pointer of"},
      {"template never downloaded",
       {},
       [&](auto& f) { test::write_text(f + "/chat_template.jinja", lfs_pointer); },
       "chat_template.jinja: a Git LFS pointer of"},
      {"tokenizer of a larger vocabulary",
       {},
       [&](auto& f) {
         std::filesystem::copy_file(GLMD_SOURCE_DIR "/models/mini/tokenizer.json",
                                    f + "/tokenizer.json");
       },
       "tokenizer.json: token \"9\": wanted an id below 24, the vocab_size of config.json, got 24"},
      {"index outside",
       {},
       [&](auto& f) {
         test::write_text(f + index, R"({"weight_map":{"a":"../other/model.safetensors"}})");
       },
       "tensor a: wanted the name of a file beside it"},
      {"index of numbers",
       {},
       [&](auto& f) { test::write_text(f + index, R"({"weight_map":{"a":3}})"); },
       "tensor a: wanted the name of a file beside it, got 3"},
      {"index with a tensor twice",
       {},
       [&](auto& f) { test::write_text(f + index, R"({"weight_map":{"a":"x","a":"x"}})"); },
       "tensor a: stands twice"},
      {"index with a line break",
       {},
       [&](auto& f) { test::write_text(f + index, R"({"weight_map":{"a\nb":"x"}})"); },
       "printable"},
      {"index empty", {}, [&](auto& f) { test::write_text(f + index, "{}"); }, "weight_map"},
      {"index a list", {}, [&](auto& f) { test::write_text(f + index, "[1]"); }, "weight_map"},
      {"index not JSON",
       {},
       [&](auto& f) { test::write_text(f + index, "{a:1}"); },
       "not valid JSON"},
      {"index of another checkpoint",
       {},
       [&](auto& f) {
         test::write_text(f + index, R"({"weight_map":{"a":"model-00002-of-00002.safetensors"}})");
       },
       "tensor a: model.safetensors.index.json names it"},
      {"config not JSON",
       {},
       [&](auto& f) { test::write_text(f + "/config.json", R"({"a)"); },
       "not valid JSON"},
      {"config deep",
       {},
       [&](auto& f) { test::write_text(f + "/config.json", std::string(100000, '[')); },
       "config.json"},
      {"tokenizer that is none",
       {},
       [&](auto& f) { test::write_text(f + "/tokenizer.json", "{}"); },
       "tokenizer.json"},
      {"generation config a pipe",
       {},
       [&](auto& f) { ASSERT_EQ(::mkfifo((f + "/generation_config.json").c_str(), 0600), 0); },
       "generation_config.json: wanted a regular file"},
      {"generation config broken",
       {},
       [&](auto& f) { test::write_text(f + "/generation_config.json", R"({"eos_token_id":99})"); },
       "eos_token_id: wanted ids from 0 to 23, got 99"},
  };
  for (const BrokenCheckpoint& broken : table) {
    SCOPED_TRACE(broken.what);
    const TemporaryFolder folder;
    TinyCheckpoint tiny = TinyCheckpoint::make("F8_E4M3");
    if (broken.spoil) broken.spoil(tiny);
    tiny.write(folder / "source", broken.spoil_folder ? 2 : 1);
    if (broken.spoil_folder) broken.spoil_folder(folder / "source");
    const Result<void> result = convert_quietly(folder / "source", folder / "target");
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.error().message, HasSubstr(broken.message));
    EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
    EXPECT_EQ(result.error().kind, broken.kind) << result.error().message;
    EXPECT_FALSE(std::filesystem::exists(folder / "target"));
  }
}

// The programs themselves: exit codes and one line on stderr.
int run_program(const std::string& command) {
  return WEXITSTATUS(std::system(command.c_str()));
}

TEST(ConvertProgram, exit_codes_say_what_kind_of_failure_it_was) {
  const std::string convert = GLMD_BINARY_DIR "/bin/glmd-convert ";
  const std::string inspect = GLMD_BINARY_DIR "/bin/glmd-inspect ";
  const TemporaryFolder folder;
  TinyCheckpoint::make().write(folder / "source");
  const std::string quiet = " >/dev/null 2>" + (folder / "error");
  EXPECT_EQ(run_program(convert + "--version" + quiet), 0);
  EXPECT_EQ(run_program(convert + quiet), 64);
  EXPECT_EQ(run_program(convert + "--experts nl3 a b" + quiet), 64);
  EXPECT_EQ(run_program(convert + (folder / "none") + " " + (folder / "target") + quiet), 66);
  const std::string below =
      folder / "source/config.json/below ";  // a file, where a folder is meant
  EXPECT_EQ(run_program(convert + below + (folder / "target") + quiet), 66);
  EXPECT_EQ(run_program(convert + (folder / "source") + " " + (folder / "none/target") + quiet),
            74);
  EXPECT_EQ(run_program(convert + (folder / "source /proc/target") + quiet), 74);  // no room
  EXPECT_EQ(run_program(convert + (folder / "source") + " " + (folder / "target") + quiet), 0);
  EXPECT_EQ(run_program(inspect + "tensors " + (folder / "target") + quiet), 0);
  EXPECT_EQ(run_program(inspect + "tensors " + (folder / "source") + quiet), 0);
  EXPECT_EQ(run_program(inspect + "verify " + (folder / "target") + quiet), 0);
  EXPECT_EQ(run_program(inspect + "verify " + (folder / "source") + quiet), 66);
  std::filesystem::remove(folder / "target/experts-001.safetensors");
  std::filesystem::resize_file(folder / "target/mtp-00000.safetensors", 100);
  EXPECT_EQ(run_program(inspect + "verify " + (folder / "target") + quiet), 65);
  const std::string said = test::read_text(folder / "error");
  EXPECT_THAT(said, HasSubstr("experts-001.safetensors"));
  EXPECT_THAT(said, HasSubstr("mtp-00000.safetensors"));
}

TEST(ConvertProgram, a_checkpoint_may_have_more_shards_than_files_may_be_open) {
  const TemporaryFolder folder;
  TinyCheckpoint::make("BF16", 48).write(folder / "source", 300);
  const std::string convert = GLMD_BINARY_DIR "/bin/glmd-convert " + (folder / "source ");
  const std::string quiet = " >/dev/null 2>" + (folder / "error");
  EXPECT_EQ(run_program("ulimit -Sn 256; " + convert + (folder / "soft") + quiet), 0);
  EXPECT_EQ(run_program("ulimit -n 32; " + convert + (folder / "hard") + quiet), 0);
  EXPECT_EQ(Container::open(folder / "soft").value().identity(),
            Container::open(folder / "hard").value().identity());
}

// The checkpoints that come with the source, where they are there.
class ConvertReal : public testing::TestWithParam<const char*> {};

TEST_P(ConvertReal, converts_with_the_default_and_with_exact_policies) {
  const std::string source = std::string(GLMD_SOURCE_DIR "/") + GetParam();
  if (!std::filesystem::exists(source + "/config.json")) GTEST_SKIP() << source << " is not there";
  const TemporaryFolder folder;
  for (const Policies& policies : {Policies{}, exact}) {
    const std::string target = folder / policy_name(policies.dense);
    const Result<void> converted = convert_quietly(source, target, policies, 2);
    ASSERT_TRUE(converted.ok()) << converted.error().message;
    EXPECT_THAT(Container::verify(target), testing::IsEmpty());
  }
}
INSTANTIATE_TEST_SUITE_P(All, ConvertReal,
                         testing::Values("models/mini", "tests/golden/oracle/base",
                                         "tests/golden/oracle/fp8", "tests/golden/oracle/odd",
                                         "tests/golden/oracle/groups",
                                         "tests/golden/oracle/epsilon",
                                         "tests/golden/oracle/long"));

}  // namespace
}  // namespace glmd
