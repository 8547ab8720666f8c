// Files that describe a model: our own fields, or Hugging Face's config.json. Both ways.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "llmc/model/config.h"

namespace llmc {

// Throws Error(bad_flags).
ModelConfig read_model_file(const std::string& path);
// `path`: for messages.
ModelConfig model_from_json(const nlohmann::json& file, const std::string& path);

// Our own fields, without the name. Of GPT-2 the five that it has.
nlohmann::ordered_json model_json(const ModelConfig& config);
// config.json, but for what it says about the files beside it.
nlohmann::ordered_json hf_model_json(const ModelConfig& config);

}  // namespace llmc
