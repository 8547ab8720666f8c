// How one product is made: with which of the algorithms that a library proposes for it, or, when it refuses all of
// them, by other means. Found when the product is made for the first time, and kept: another algorithm would give other
// bits.
#pragma once

namespace llmc {

class ProductWay {
public:
    ProductWay() = default;
    // `proposed` algorithms, best first. `has_emulation`: whether there is another way.
    ProductWay(int proposed, bool has_emulation) : proposed_(proposed), has_emulation_(has_emulation) {}

    // Makes the product once. attempt(i) runs algorithm i, or returns false if the library refuses it before it has
    // done anything; other errors are to be thrown. False: there is no way, or the one that was found is refused now.
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
    // No algorithm is left: what was made was made by other means.
    bool emulated() const { return has_emulation_ && at_ == proposed_; }
    int algorithm() const { return at_; }

private:
    int proposed_ = 0, at_ = 0;
    bool has_emulation_ = false, found_ = false;
};

}  // namespace llmc
