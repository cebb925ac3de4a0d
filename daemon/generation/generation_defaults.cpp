#include "generation/generation_defaults.h"

#include <cmath>

namespace glmd {
namespace {

// The member, or `otherwise` where it is absent or null; above `max` or below 0 is an error.
Result<double> read_number(const Json& config, const char* name, double otherwise, double max) {
  const Json* value = config.find(name);
  if (value == nullptr || value->is_null()) return otherwise;
  if (!value->is_number() || !(value->as_real() >= 0 && value->as_real() <= max)) {
    return error(ErrorKind::bad_input,
                 "generation_config.json: {}: wanted a number from 0 to {}, got {}", name, max,
                 value->to_string().substr(0, 40));
  }
  return value->as_real();
}

}  // namespace

Result<GenerationDefaults> read_generation_defaults(const Json& generation_config) {
  GenerationDefaults defaults;
  if (generation_config.is_null()) return defaults;
  if (!generation_config.is_object()) {
    return error(ErrorKind::bad_input, "generation_config.json: wanted an object");
  }
  defaults.temperature = TRY(read_number(generation_config, "temperature", 1, 100));
  defaults.top_p = TRY(read_number(generation_config, "top_p", 1, 1));
  const Json* do_sample = generation_config.find("do_sample");
  if (do_sample != nullptr && do_sample->is_boolean() && !do_sample->as_boolean()) {
    defaults.temperature = 0;
  }
  return defaults;
}

}  // namespace glmd
