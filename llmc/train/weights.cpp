#include "llmc/train/weights.h"

#include "llmc/checkpoint/hf_export.h"

namespace llmc {

template <class Real>
void load_weights(Trainer<Real>& trainer, const std::string& path) {
    import_weights(
        *open_weights(path, trainer.config().model),
        [&](const std::string& name, const std::vector<float>& values) { trainer.set_weight(name, values); });
    trainer.weights_are_set();
}

template <class Real>
void save_weights(const Trainer<Real>& trainer, const std::string& path, int end_token) {
    if (trainer.comm().is_main())
        export_hf(path, trainer.config().model, end_token,
                  [&](const std::string& name, std::vector<float>& values) { values = trainer.get_weight(name); });
    else
        for (const TensorRow& row : all_tensors(trainer.config().model)) trainer.get_weight(row.name);
}

template void load_weights(Trainer<float>&, const std::string&);
template void load_weights(Trainer<bf16>&, const std::string&);
template void save_weights(const Trainer<float>&, const std::string&, int);
template void save_weights(const Trainer<bf16>&, const std::string&, int);

}  // namespace llmc
