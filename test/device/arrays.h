// DeviceArrays as arguments of launch(): out(x) declares that the kernel writes the whole array and passes its address.
#pragma once
#include "llmc/device/launch.cuh"
#include "test/kernel_test.h"

namespace llmc::test {

template <class T>
Tensor<const T> in(const DeviceArray<T>& array) {
    return llmc::in(array.get(), array.size());
}
template <class T>
Tensor<T> out(DeviceArray<T>& array) {
    return llmc::out(array.get(), array.size());
}
template <class T>
Tensor<T> inout(DeviceArray<T>& array) {
    return llmc::inout(array.get(), array.size());
}

}  // namespace llmc::test
