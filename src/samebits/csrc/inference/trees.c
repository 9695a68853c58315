/* --- decision trees ----------------------------------------------------------------------------
 *
 * Every row walks every tree from its root: reference r below `branches` is a branch, which goes on
 * to links[2 * r] where its feature is at most its threshold and to links[2 * r + 1] elsewhere; the
 * others are leaves. Branches refer to later ones only (the lowering has checked it), so that a
 * walk ends after at most `branches` steps. Sums wrap modulo 2**64 and are proved to fit. */

#include "samebits_vector.h"

void samebits_run_tree_ensemble(const samebits_trees *c, const void *x, void *out) {
    int32_t row, tree, first, n, i;
    for (row = 0; row < c->rows; row++) {
        for (first = 0; first < c->targets; first += n) {
            int64_t acc[SAMEBITS_CHUNK];
            n = SAMEBITS_MIN(c->targets - first, SAMEBITS_CHUNK);
            for (i = 0; i < n; i++) acc[i] = 0;
            for (tree = 0; tree < c->trees; tree++) {
                int32_t at = (int32_t)samebits_get(c->roots, c->link_type, tree), target, leaf;
                while (at < c->branches) {
                    const int64_t code =
                        samebits_get(x, c->type, row * c->features + c->feature[at]);
                    const int32_t no = code > samebits_get(c->thresholds, c->type, at);
                    at = (int32_t)samebits_get(c->links, c->link_type, 2 * at + no);
                }
                leaf = at - c->branches;
                target = (int32_t)samebits_get(c->starts, c->start_type, leaf) - first;
                for (i = 0; i < c->width; i++, target++) {
                    if (target < 0 || target >= n) continue;
                    acc[target] = samebits_signed64(
                        (uint64_t)acc[target] +
                        (uint64_t)samebits_get(c->weights, c->weight_type, leaf * c->width + i));
                }
            }
            samebits_finish64(&c->rescale, c->rescale.channels > 1 ? first : 0, n, acc, out,
                              row * c->targets + first);
        }
    }
}
