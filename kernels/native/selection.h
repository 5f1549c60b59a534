// A row's best tokens, and what filters keep, found without sorting.
#pragma once

#include "sampling.h"

namespace cadenza {

// What a row needs room for.
struct Scratch {
  Kept kept;
  Token* tokens;  // as many as `kept` has room for
  float* maxima;  // kLanes a block: of tokens 0, 16, 32, ... of it, of 1, 17, 33, ... and so on
  float* folded;  // as many
};

// That of the thread, which keeps it from one row to the next. Null when there is no memory.
const Scratch* scratch_for(int64_t size);

// A row that has been scanned.
struct Row {
  const Passes& passes;
  const float* logits;
  int64_t size;
  float largest;
  float temperature;
};

// Keeps the tokens with scaled logit >= least.
void gather(const Row& row, float least, const Scratch& scratch, Kept& kept);

// Keeps likewise, with weights, and returns the sum of all weights of the row.
double weigh(const Row& row, float least, Kept& kept);

// Keeps the `count` best of those with scaled logit >= least, with weights of 1.
void keep_best(const Row& row, int64_t count, float least, const Scratch& scratch, Kept& kept);

// Of what is kept, keeps the tokens whose better ones weigh less than `target` together, at least one.
void keep_reaching(const Row& row, double target, const Scratch& scratch, Kept& kept);

// Of what is kept, keeps the tokens with scaled logit >= least, without weights.
void keep_from(Kept& kept, float least);

}  // namespace cadenza
