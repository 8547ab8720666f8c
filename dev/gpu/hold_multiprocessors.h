// Holds multiprocessors while a program runs (hold_multiprocessors.cu).
#pragma once

void start_holding(int multiprocessors);  // in a thread of its own
void stop_holding();                      // returns when they are free again
