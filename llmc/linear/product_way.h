// Which of a library's proposed algorithms computes a product, or emulation if the library refuses all of them. Chosen
// when the product runs for the first time, and kept, because another algorithm would give other bits.
#pragma once

namespace llmc {

class ProductWay {
public:
    ProductWay() = default;
    // `proposed`: number of algorithms, best first. `has_emulation`: the product can be emulated.
    ProductWay(int proposed, bool has_emulation) : proposed_(proposed), has_emulation_(has_emulation) {}

    // Runs the product once. attempt(i) runs algorithm i, or returns false if the library refuses it before doing
    // anything; it throws other errors. Returns false if nothing works, or if the algorithm that worked before is
    // refused now.
    template <class Attempt, class Emulate>
    bool make(Attempt&& attempt, Emulate&& emulate) {
        for (; at_ < proposed_; at_++) {
            if (attempt(at_)) return found_ = true;
            if (found_) return false;
        }
        if (!has_emulation_) return false;
        emulate();
        return true;
    }
    // True if no algorithm is left and the product was emulated.
    bool emulated() const { return has_emulation_ && at_ == proposed_; }
    int algorithm() const { return at_; }

private:
    int proposed_ = 0, at_ = 0;
    bool has_emulation_ = false, found_ = false;
};

}  // namespace llmc
