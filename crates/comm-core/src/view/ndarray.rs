//! Arrays of ndarray as buffers, if their elements are contiguous in memory in the order of their
//! indices.
//!
//! An array of another layout, such as a column or a transposed array, is rejected when a call is
//! made, because ranks would combine elements of different indices.

use ndarray::{ArrayBase, Data, DataMut, Dimension};

use crate::{AsView, AsViewMut, Element, HostView, HostViewMut, Invalid, Result};

const WHAT: &str = "the ndarray";

impl<T: Element, S: Data<Elem = T>, D: Dimension> AsView for ArrayBase<S, D> {
    type Element = T;

    fn as_view(&self) -> Result<HostView<'_>> {
        self.as_slice().map(HostView::new).ok_or_else(|| Invalid::NotContiguous { what: WHAT }.into())
    }
}

impl<T: Element, S: DataMut<Elem = T>, D: Dimension> AsViewMut for ArrayBase<S, D> {
    type Element = T;

    fn as_view_mut(&mut self) -> Result<HostViewMut<'_>> {
        self.as_slice_mut().map(HostViewMut::new).ok_or_else(|| Invalid::NotContiguous { what: WHAT }.into())
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, s};

    use super::*;
    use crate::{Error, Shape};

    fn len(buffer: &mut (impl AsViewMut + ?Sized)) -> Result<usize> {
        buffer.as_view_mut().map(|view| view.len())
    }

    #[test]
    fn arrays_and_their_rows_are_buffers() {
        let mut array = Array2::<f64>::zeros((3, 4));
        assert_eq!(len(&mut array).unwrap(), 12);
        assert_eq!(len(&mut array.row_mut(1)).unwrap(), 4);
        assert_eq!(len(&mut array.slice_mut(s![1.., ..])).unwrap(), 8);
        assert_eq!(array.view().as_view().unwrap().len(), 12);
    }

    #[test]
    fn arrays_of_another_layout_are_refused() {
        let mut array = Array2::<f64>::zeros((3, 4));
        let refused = [len(&mut array.column_mut(1)), len(&mut array.slice_mut(s![.., 1..]))];
        for refused in refused {
            assert!(matches!(refused, Err(Error::Invalid(Invalid::NotContiguous { .. }))), "{refused:?}");
        }
        assert!(array.t().as_view().is_err(), "the elements are in another order");
    }
}
