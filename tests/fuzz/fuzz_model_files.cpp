// Any bytes as each kind of file that comes with a model, the first byte choosing which. Whatever
// is accepted must also work: texts are encoded and decoded, chats become text.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "platform/file.h"
#include "storage/checkpoint_config.h"
#include "storage/manifest.h"
#include "storage/safetensors.h"
#include "text/chat_input.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace glmd {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void read_as_safetensors(std::string_view bytes) {
  static const int memory = memfd_create("fuzz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(memory);
  require(ftruncate(memory, 0) == 0);
  require(pwrite(memory, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  const Result<File> file = File::open_read_only(path);
  require(file.ok());
  const Result<SafetensorsHeader> header = read_safetensors_header(file.value());
  if (!header.ok()) return;
  for (const StoredTensor& tensor : header.value().tensors) {
    require(tensor.offset >= 0 && tensor.bytes >= 0);
    require(tensor.offset + tensor.bytes <= static_cast<int64_t>(bytes.size()));
  }
}

void read_as_tokenizer(std::string_view bytes) {
  const Result<Tokenizer> tokenizer = Tokenizer::parse(bytes, "tokenizer.json");
  if (!tokenizer.ok()) return;
  tokenizer.value().decode(tokenizer.value().encode("Grüße, 1234 <|user|>\n\n x"));
}

void read_as_json(uint8_t kind, std::string_view bytes) {
  const Result<Json> json = parse_json(bytes, "input");
  if (!json.ok()) return;
  if (kind == 0) (void)CheckpointConfig::parse(json.value(), "config.json");
  if (kind == 1) (void)Manifest::parse(json.value(), "glmd.json");
  if (kind != 2) return;
  (void)render_chat(json.value());
  Json chat = json.value();
  if (normalise_chat(chat).ok()) (void)render_chat(chat);
}

}  // namespace
}  // namespace glmd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const uint8_t kind = data[0] % 5;
  if (kind < 3) glmd::read_as_json(kind, bytes);
  if (kind == 3) glmd::read_as_safetensors(bytes);
  if (kind == 4) glmd::read_as_tokenizer(bytes);
  return 0;
}
