#include "model/families/families.h"

#include "model/families/glm/glm.h"

namespace glmd {
namespace {

struct Family {
  std::string_view name;
  Result<std::unique_ptr<Model>> (*open)(const Container&, const ModelOptions&);
  Result<ModelSizes> (*sizes)(const Container&, bool with_draft, KvFormat);
};

constexpr Family families[] = {
    {"glm_moe_dsa", &GlmModel::open, &GlmModel::sizes},
};

Result<const Family*> family_of(const Container& container) {
  const Json* name = container.manifest().find("family");
  if (name != nullptr && name->is_string()) {
    for (const Family& family : families) {
      if (family.name == name->as_string()) return &family;
    }
  }
  return error(ErrorKind::bad_input, "{}: glmd.json: family: wanted glm_moe_dsa, got {}",
               container.folder(), name == nullptr ? "none" : name->to_string());
}

}  // namespace

Result<PassPtr> Model::begin_draft(SequenceState&, std::span<const int32_t>,
                                   std::span<const float>) {
  return error(ErrorKind::bad_input, "this model has no draft layer");
}

Result<std::unique_ptr<Model>> open_model(const Container& container, const ModelOptions& options) {
  const Family* family = TRY(family_of(container));
  return family->open(container, options);
}

Result<ModelSizes> model_sizes(const Container& container, bool with_draft, KvFormat kv_format) {
  const Family* family = TRY(family_of(container));
  return family->sizes(container, with_draft, kv_format);
}

}  // namespace glmd
