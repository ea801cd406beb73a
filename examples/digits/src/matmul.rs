//! Matrix products with the crate `matrixmultiply`. This file has all unsafe code of the package.

/// A matrix view of numbers in row-major order, or its transpose.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a, T> {
    numbers: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Creates a view with `columns` columns.
    ///
    /// # Panics
    /// If `columns` does not divide the length.
    #[must_use]
    pub fn new(numbers: &'a [T], columns: usize) -> Self {
        let rows = numbers.len().checked_div(columns).unwrap_or(0);
        assert_eq!(rows * columns, numbers.len(), "{columns} columns do not divide the matrix");
        Self { numbers, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// Returns the transpose without copying.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            numbers: self.numbers,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// A number type with matrix products.
pub trait Multiply: Copy {
    /// Overwrites `product` with `left` x `right` in row-major order, without reading it.
    ///
    /// # Panics
    /// If the shapes do not match.
    fn multiply(left: Matrix<'_, Self>, right: Matrix<'_, Self>, product: &mut [Self]);
}

macro_rules! multiply {
    ($number:ty, $gemm:path) => {
        impl Multiply for $number {
            fn multiply(left: Matrix<'_, Self>, right: Matrix<'_, Self>, product: &mut [Self]) {
                assert_eq!(left.columns, right.rows, "inner dimensions differ");
                assert_eq!(product.len(), left.rows * right.columns, "the product has another shape");
                // The length of a slice is at most isize::MAX, so a stride fits in isize.
                let strides = |m: &Matrix<'_, Self>| (m.row_stride as isize, m.column_stride as isize);
                let ((left_row, left_column), (right_row, right_column)) = (strides(&left), strides(&right));
                // SAFETY: `Matrix::new` checks that each operand has rows x columns numbers, and
                // transposing swaps the two together with their strides. The length of `product`
                // was checked above; it is dense, so no two of its elements alias, and it is
                // borrowed uniquely, so it overlaps neither operand. With beta = 0 it is not read.
                unsafe {
                    $gemm(
                        left.rows,
                        left.columns,
                        right.columns,
                        1.0,
                        left.numbers.as_ptr(),
                        left_row,
                        left_column,
                        right.numbers.as_ptr(),
                        right_row,
                        right_column,
                        0.0,
                        product.as_mut_ptr(),
                        right.columns as isize,
                        1,
                    );
                }
            }
        }
    };
}

multiply!(f32, matrixmultiply::sgemm);
multiply!(f64, matrixmultiply::dgemm);

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: [f64; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    const RIGHT: [f64; 6] = [1.0, -1.0, 2.0, 0.0, 0.5, 3.0];

    #[test]
    fn multiplies_rows_by_columns() {
        let mut product = [f64::NAN; 4];
        f64::multiply(Matrix::new(&LEFT, 3), Matrix::new(&RIGHT, 2), &mut product);
        assert_eq!(product, [6.5, 8.0, 17.0, 14.0]);
    }

    #[test]
    fn a_transposed_operand_is_read_in_columns() {
        let mut product = [f64::NAN; 4];
        f64::multiply(Matrix::new(&LEFT, 2).transposed(), Matrix::new(&RIGHT, 2), &mut product);
        assert_eq!(product, [9.5, 14.0, 13.0, 16.0]);
        let mut product = [f32::NAN; 1];
        f32::multiply(Matrix::new(&[2.0, 3.0], 2), Matrix::new(&[4.0, 5.0], 2).transposed(), &mut product);
        assert_eq!(product, [23.0]);
    }

    #[test]
    fn an_empty_inner_dimension_gives_zeros() {
        let mut product = [f64::NAN; 6];
        f64::multiply(Matrix::new(&[], 3).transposed(), Matrix::new(&[], 2), &mut product);
        assert_eq!(product, [0.0; 6]);
    }

    #[test]
    #[should_panic(expected = "inner dimensions differ")]
    fn shapes_that_do_not_fit_are_refused() {
        f64::multiply(Matrix::new(&LEFT, 2), Matrix::new(&RIGHT, 2), &mut [0.0; 6]);
    }

    #[test]
    #[should_panic(expected = "another shape")]
    fn a_short_product_is_refused() {
        f64::multiply(Matrix::new(&LEFT, 3), Matrix::new(&RIGHT, 2), &mut [0.0; 3]);
    }

    #[test]
    #[should_panic(expected = "do not divide")]
    fn ragged_matrices_are_refused() {
        let _ = Matrix::new(&LEFT, 4);
    }
}
