// Any bytes through both readers, whole and cut at a place that the first byte chooses: the items
// must be the same, and what was understood must survive being written again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "protocol/reply.h"
#include "protocol/request.h"

namespace glmd::protocol {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

template <typename Reader>
std::vector<typename Reader::Item> read_in_pieces(std::string_view bytes, size_t piece_bytes) {
  Reader reader;
  std::vector<typename Reader::Item> items;
  for (size_t begin = 0; begin < bytes.size(); begin += piece_bytes) {
    reader.feed(bytes.substr(begin, piece_bytes));
    while (auto item = reader.next()) items.push_back(std::move(*item));
  }
  return items;
}

void check_requests(std::string_view bytes, size_t piece_bytes) {
  const auto whole = read_in_pieces<RequestReader>(bytes, bytes.size());
  require(whole == read_in_pieces<RequestReader>(bytes, piece_bytes));
  for (const auto& item : whole) {
    const auto* request = std::get_if<Request>(&item);
    if (!request) continue;
    const std::string text = format_request(*request);
    const auto again = read_in_pieces<RequestReader>(text, text.size());
    // Values that came in at the limit of a line may be longer when written again; nothing else may
    // differ.
    if (text.find('\n') + 1 > static_cast<size_t>(line_bytes_max)) continue;
    require(again.size() == 1 && again[0] == item);
  }
}

void check_replies(std::string_view bytes, size_t piece_bytes) {
  const auto whole = read_in_pieces<ReplyReader>(bytes, bytes.size());
  require(whole == read_in_pieces<ReplyReader>(bytes, piece_bytes));
}

}  // namespace
}  // namespace glmd::protocol

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t piece_bytes = data[0] % 64 + size_t{1};
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  glmd::protocol::check_requests(bytes, piece_bytes);
  glmd::protocol::check_replies(bytes, piece_bytes);
  return 0;
}
