//! The elements of tensors in the memory of the host.

use std::cell::Cell;
use std::ops::Deref;

use candle_core::{CpuStorage, Error, InplaceOp1, Layout, Result, Storage, Tensor};
use comm_core::{AsView, Erased, HostView, HostViewMut};

/// Evaluates an expression with the vector of a storage of the host.
macro_rules! with_elements {
    ($storage:expr, |$elements:ident| $body:expr) => {
        match $storage {
            CpuStorage::U8($elements) => $body,
            CpuStorage::U32($elements) => $body,
            CpuStorage::I16($elements) => $body,
            CpuStorage::I32($elements) => $body,
            CpuStorage::I64($elements) => $body,
            CpuStorage::BF16($elements) => $body,
            CpuStorage::F16($elements) => $body,
            CpuStorage::F32($elements) => $body,
            CpuStorage::F64($elements) => $body,
            _ => candle_core::bail!("elements of a type that cannot be communicated"),
        }
    };
}

/// Evaluates an expression for the vector of a storage of the host, to a vector of the same type.
macro_rules! map_elements {
    ($storage:expr, |$elements:ident| $body:expr) => {
        match $storage {
            CpuStorage::U8($elements) => CpuStorage::U8($body),
            CpuStorage::U32($elements) => CpuStorage::U32($body),
            CpuStorage::I16($elements) => CpuStorage::I16($body),
            CpuStorage::I32($elements) => CpuStorage::I32($body),
            CpuStorage::I64($elements) => CpuStorage::I64($body),
            CpuStorage::BF16($elements) => CpuStorage::BF16($body),
            CpuStorage::F16($elements) => CpuStorage::F16($body),
            CpuStorage::F32($elements) => CpuStorage::F32($body),
            CpuStorage::F64($elements) => CpuStorage::F64($body),
            _ => candle_core::bail!("elements of a type that cannot be communicated"),
        }
    };
}

/// Calls `visit` with the elements of a tensor in row-major order.
pub(crate) fn read<R>(tensor: &Tensor, visit: impl FnOnce(HostView<'_>) -> R) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let elements = elements(&tensor)?;
    Ok(visit(elements.view()?))
}

/// The elements of a contiguous tensor, which is locked against writing.
pub(crate) struct Elements<'t, S> {
    /// Locked.
    storage: S,
    layout: &'t Layout,
}

/// Returns the elements of a contiguous tensor.
pub(crate) fn elements(tensor: &Tensor) -> Result<Elements<'_, impl Deref<Target = Storage>>> {
    let (storage, layout) = tensor.storage_and_layout();
    let elements = Elements { storage, layout };
    elements.view().map(drop)?;
    Ok(elements)
}

impl<S: Deref<Target = Storage>> Elements<'_, S> {
    /// Copies the elements.
    pub(crate) fn copy(&self) -> Result<CpuStorage> {
        let (storage, (start, end)) = self.parts()?;
        Ok(map_elements!(storage, |elements| elements[start..end].to_vec()))
    }

    /// Returns this many zeros of the type of the elements.
    pub(crate) fn zeros(&self, len: usize) -> Result<CpuStorage> {
        let (storage, _) = self.parts()?;
        Ok(map_elements!(storage, |elements| zeros_like(elements, len)))
    }

    pub(crate) fn view(&self) -> Result<HostView<'_>> {
        let (storage, (start, end)) = self.parts()?;
        Ok(with_elements!(storage, |elements| HostView::new(&elements[start..end])))
    }

    fn parts(&self) -> Result<(&CpuStorage, (usize, usize))> {
        let Storage::Cpu(storage) = &*self.storage else {
            candle_core::bail!("a tensor is not in host memory")
        };
        Ok((storage, range(self.layout)?))
    }
}

/// Returns all elements of a storage for writing.
pub(crate) fn view_mut(storage: &mut CpuStorage) -> Result<HostViewMut<'_>> {
    Ok(with_elements!(storage, |elements| HostViewMut::new(&mut elements[..])))
}

fn zeros_like<T: Clone + Default>(_: &[T], len: usize) -> Vec<T> {
    vec![T::default(); len]
}

impl<S: Deref<Target = Storage>> AsView for Elements<'_, S> {
    type Element = Erased;

    fn as_view(&self) -> comm_core::Result<HostView<'_>> {
        self.view().map_err(|_| comm_core::Invalid::NotContiguous { what: "a tensor" }.into())
    }
}

/// Calls `visit` with the elements of a contiguous tensor, for writing in place.
pub(crate) fn write<R>(tensor: &Tensor, visit: impl FnOnce(HostViewMut<'_>) -> R) -> Result<R> {
    let write = Write { visit: Cell::new(Some(visit)), result: Cell::new(None) };
    tensor.inplace_op1(&write)?;
    write.result.take().ok_or(Error::UnwrapNone)
}

/// An in-place operation for candle, which calls it by reference and only once.
struct Write<F, R> {
    visit: Cell<Option<F>>,
    result: Cell<Option<R>>,
}

impl<F: FnOnce(HostViewMut<'_>) -> R, R> InplaceOp1 for Write<F, R> {
    fn name(&self) -> &'static str {
        "communicate"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (start, end) = range(layout)?;
        let view = with_elements!(storage, |elements| HostViewMut::new(&mut elements[start..end]));
        self.result.set(self.visit.take().map(|visit| visit(view)));
        Ok(())
    }
}

/// Returns the range of the elements of a contiguous tensor in its storage.
pub(crate) fn range(layout: &Layout) -> Result<(usize, usize)> {
    layout.contiguous_offsets().ok_or(Error::RequiresContiguous { op: "communicate" })
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Result, Tensor};
    use comm_core::Shape;

    use super::*;

    fn grid() -> Result<Tensor> {
        Tensor::arange(0_f32, 12.0, &Device::Cpu)?.reshape((3, 4))
    }

    #[test]
    fn elements_are_read_in_the_order_of_indices() -> Result<()> {
        let read_all = |tensor: &Tensor| read(tensor, |view| view.elements::<f32>().unwrap().to_vec());
        assert_eq!(read_all(&grid()?)?, (0_u8..12).map(f32::from).collect::<Vec<_>>());
        assert_eq!(read_all(&grid()?.t()?)?[..4], [0.0, 4.0, 8.0, 1.0]);
        assert_eq!(read_all(&grid()?.narrow(0, 1, 1)?)?, [4.0, 5.0, 6.0, 7.0]);
        assert_eq!(read_all(&grid()?.get(0)?.narrow(0, 1, 1)?.broadcast_as((2, 2))?)?, [1.0; 4]);
        assert!(read(&grid()?, |view| view.elements::<f64>().is_none())?);
        Ok(())
    }

    #[test]
    fn contiguous_tensors_are_written_in_place_and_nothing_else() -> Result<()> {
        let grid = grid()?;
        let row = grid.narrow(0, 1, 1)?;
        let len = write(&row, |view| {
            let len = view.len();
            view.into_bytes().fill(0);
            len
        })?;
        assert_eq!(len, 4);
        assert_eq!(
            grid.to_vec2::<f32>()?,
            [[0.0, 1.0, 2.0, 3.0], [0.0; 4], [8.0, 9.0, 10.0, 11.0]].map(Vec::from)
        );
        assert!(write(&grid.t()?, |_| ()).is_err());
        Ok(())
    }
}
