// Who wants to know where tokens were routed: a trace, a history. Thread: compute; called once a
// layer and pass, so it must neither wait nor fail.
#pragma once

#include <cstdint>
#include <span>

namespace glmd {

struct RoutedRows {
  int32_t layer = 0;                    // of the model
  std::span<const uint32_t> positions;  // [rows]: of each token in its sequence
  std::span<const uint16_t> experts;    // [rows][chosen]: ids within the layer, best score first
};

class RoutingObserver {
 public:
  virtual ~RoutingObserver() = default;
  virtual void routed(const RoutedRows& rows) = 0;
};

}  // namespace glmd
