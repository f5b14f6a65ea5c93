// Temperature 0: the greatest score wins, ties go to the lowest id. Grid: 1.
@compute @workgroup_size(1)
fn main() {
  let s = summary();
  for (var b = 0u; b < BLOCKS; b++) { // blocks are in the order of ids
    if (blocks[b].best == s.best) {
      finish(blocks[b].best_id, s, OK, 0u);
      return;
    }
  }
  finish(0u, s, BAD_LOGITS, 0u);
}
