//! Products of a matrix of gradients and matrices of few columns.

/// The number of partial sums of a dot product: one vector register, whose additions do not depend
/// on each other.
const LANES: usize = 8;
/// The fraction of a column that must remain after its projections onto earlier columns are
/// subtracted. A smaller rest consists of rounding errors.
const INDEPENDENT_MIN: f32 = 1e-5;

/// A matrix of gradients, row by row, and the number of columns of its factors. Factors are stored
/// column by column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MatrixShape {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// The number of columns of both factors, positive.
    pub(super) rank: usize,
}

impl MatrixShape {
    /// Returns the number of elements of the left factor.
    pub(super) const fn left_len(self) -> usize {
        self.rows * self.rank
    }

    /// Returns the number of elements of the right factor.
    pub(super) const fn right_len(self) -> usize {
        self.columns * self.rank
    }

    /// Stores `matrix * right` in `left`.
    pub(super) fn project(self, matrix: &[f32], right: &[f32], left: &mut [f32]) {
        for (left, right) in left.chunks_exact_mut(self.rows).zip(right.chunks_exact(self.columns)) {
            let rows = matrix.chunks_exact(self.columns);
            left.iter_mut().zip(rows).for_each(|(element, row)| *element = dot(row, right));
        }
    }

    /// Stores `transpose(matrix) * left` in `right`.
    pub(super) fn project_back(self, matrix: &[f32], left: &[f32], right: &mut [f32]) {
        right.fill(0.0);
        for (left, right) in left.chunks_exact(self.rows).zip(right.chunks_exact_mut(self.columns)) {
            let rows = matrix.chunks_exact(self.columns);
            left.iter().zip(rows).for_each(|(factor, row)| add_scaled(right, *factor, row));
        }
    }

    /// Stores `left * transpose(right)` in `matrix`.
    pub(super) fn expand(self, left: &[f32], right: &[f32], matrix: &mut [f32]) {
        matrix.fill(0.0);
        for (left, right) in left.chunks_exact(self.rows).zip(right.chunks_exact(self.columns)) {
            let rows = matrix.chunks_exact_mut(self.columns);
            left.iter().zip(rows).for_each(|(factor, row)| add_scaled(row, *factor, right));
        }
    }

    /// Makes the columns of a left factor orthogonal and of length 1, by the modified Gram-Schmidt
    /// process. A column that depends on earlier ones becomes zero.
    pub(super) fn orthonormalize(self, left: &mut [f32]) {
        for column in 0..self.rank {
            let (earlier, rest) = left.split_at_mut(column * self.rows);
            let Some(current) = rest.get_mut(..self.rows) else { return };
            let before = norm(current);
            for other in earlier.chunks_exact(self.rows) {
                let projection = dot(current, other);
                add_scaled(current, -projection, other);
            }
            let after = norm(current);
            let is_independent = after > before * INDEPENDENT_MIN && after.is_normal();
            current
                .iter_mut()
                .for_each(|element| *element = if is_independent { *element / after } else { 0.0 });
        }
    }
}

fn add_scaled(into: &mut [f32], factor: f32, from: &[f32]) {
    into.iter_mut().zip(from).for_each(|(into, from)| *into += factor * from);
}

/// Returns the dot product, whose additions have the same order for the same length.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let ((left, left_rest), (right, right_rest)) = (left.as_chunks::<LANES>(), right.as_chunks::<LANES>());
    for (left, right) in left.iter().zip(right) {
        sums.iter_mut().zip(left.iter().zip(right)).for_each(|(sum, (left, right))| *sum += left * right);
    }
    let rest = left_rest.iter().zip(right_rest).map(|(left, right)| left * right);
    sums.into_iter().chain(rest).sum()
}

fn norm(column: &[f32]) -> f32 {
    // In f64, squares of f32 neither overflow nor underflow.
    column.iter().map(|element| f64::from(*element).powi(2)).sum::<f64>().sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: MatrixShape = MatrixShape { rows: 3, columns: 10, rank: 2 };

    fn integers(len: usize, step: usize) -> Vec<f32> {
        (0..len).map(|at| (at * step % 7) as f32 - 3.0).collect()
    }

    #[test]
    fn products_match_the_definition() {
        let MatrixShape { rows, columns, rank } = SHAPE;
        let (matrix, right) = (integers(rows * columns, 3), integers(columns * rank, 5));
        let mut left = vec![f32::NAN; SHAPE.left_len()];
        SHAPE.project(&matrix, &right, &mut left);
        for (row, k) in (0..rows).flat_map(|row| (0..rank).map(move |k| (row, k))) {
            let terms =
                (0..columns).map(|column| matrix[row * columns + column] * right[k * columns + column]);
            assert_eq!(left[k * rows + row], terms.sum::<f32>());
        }
        let mut back = vec![f32::NAN; SHAPE.right_len()];
        SHAPE.project_back(&matrix, &left, &mut back);
        for (column, k) in (0..columns).flat_map(|column| (0..rank).map(move |k| (column, k))) {
            let terms = (0..rows).map(|row| matrix[row * columns + column] * left[k * rows + row]);
            assert_eq!(back[k * columns + column], terms.sum::<f32>());
        }
        let mut expanded = vec![f32::NAN; rows * columns];
        SHAPE.expand(&left, &right, &mut expanded);
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            let terms = (0..rank).map(|k| left[k * rows + row] * right[k * columns + column]);
            assert_eq!(expanded[row * columns + column], terms.sum::<f32>());
        }
    }

    #[test]
    fn columns_become_orthonormal_whatever_their_scale() {
        let shape = MatrixShape { rows: 5, columns: 1, rank: 3 };
        for scale in [1e-25, 1.0, 1e25] {
            let mut left: Vec<f32> = (0..15).map(|at| ((at * at) % 11) as f32 * scale).collect();
            shape.orthonormalize(&mut left);
            let columns: Vec<&[f32]> = left.chunks_exact(5).collect();
            for (at, column) in columns.iter().enumerate() {
                assert!((norm(column) - 1.0).abs() < 1e-6, "{scale}");
                assert!(columns[..at].iter().all(|other| dot(column, other).abs() < 1e-5), "{scale}");
            }
        }
    }

    #[test]
    fn columns_that_depend_on_others_become_zero() {
        let shape = MatrixShape { rows: 4, columns: 1, rank: 3 };
        let mut left = [0.1, 0.3, 0.7, 0.9, 0.2, 0.6, 1.4, 1.8, 0.0, 0.0, 0.0, 0.0];
        shape.orthonormalize(&mut left);
        assert!((norm(&left[..4]) - 1.0).abs() < 1e-6);
        assert_eq!(left[4..], [0.0; 8]);
    }
}
