//! Names, shapes and element types of the trained parameters, in one order on every rank.

use comm_core::{AsViewMut, DType, Element, Kernels, Shape};

use crate::{Error, Result};

/// Name, shape and element type of one parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    name: String,
    shape: Vec<usize>,
    dtype: DType,
    is_frozen: bool,
}

impl Parameter {
    /// Creates a parameter with elements of type `T`. Its name must be equal on every rank; a
    /// scalar has an empty shape.
    pub fn new<T: Element>(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self::with_dtype(name, shape, T::DTYPE)
    }

    /// Creates a parameter whose element type is known at run time.
    pub fn with_dtype(name: impl Into<String>, shape: impl Into<Vec<usize>>, dtype: DType) -> Self {
        Self { name: name.into(), shape: shape.into(), dtype, is_frozen: false }
    }

    /// Returns the parameter as one that is not trained: ranks compare and broadcast it, but it
    /// has no gradient, no place in a bucket and no state of an optimizer. It may have any element
    /// type.
    #[must_use]
    pub fn frozen(mut self) -> Self {
        self.is_frozen = true;
        self
    }

    /// Returns the parameter as one that is trained.
    pub(crate) fn trained(mut self) -> Self {
        self.is_frozen = false;
        self
    }

    /// Returns whether the parameter is not trained.
    #[must_use]
    pub const fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the length of every dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the type of the elements.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements: the product of the shape.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns an error if the elements have another type.
    pub(crate) fn check_type<T: Element>(&self) -> Result<()> {
        if self.dtype == T::DTYPE {
            return Ok(());
        }
        Err(Error::WrongType { name: self.name.clone(), expected: self.dtype, got: T::DTYPE })
    }

    /// Returns whether the parameter has no elements, because a dimension is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The parameters of a model.
///
/// Within a process a parameter has an *index*, its position in the order of registration. Between
/// processes it has a *slot*, its position in the order of names. Ranks may therefore register in
/// different orders, for example because they iterate over a hash map.
#[derive(Debug, Clone)]
pub struct ParameterSet {
    /// Sorted by name.
    sorted: Vec<Parameter>,
    /// The slot of every index.
    slots: Vec<usize>,
}

impl ParameterSet {
    /// Creates a set of parameters, registered in this order. Communication overlaps best if this
    /// is the order in which forward uses them.
    ///
    /// # Errors
    /// [`Error::DuplicateName`] if two have the same name.
    pub fn new(parameters: impl IntoIterator<Item = Parameter>) -> Result<Self> {
        let mut sorted: Vec<(usize, Parameter)> = parameters.into_iter().enumerate().collect();
        sorted.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].1.name == pair[1].1.name) {
            return Err(Error::DuplicateName { name: pair[0].1.name.clone() });
        }
        let mut slots = vec![0; sorted.len()];
        for (slot, (index, _)) in sorted.iter().enumerate() {
            slots[*index] = slot;
        }
        Ok(Self { sorted: sorted.into_iter().map(|(_, parameter)| parameter).collect(), slots })
    }

    /// Returns the number of parameters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Returns whether there are no parameters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Returns the parameters sorted by name, which is the order of slots.
    #[must_use]
    pub fn sorted(&self) -> &[Parameter] {
        &self.sorted
    }

    /// Returns the slot of the parameter with this index.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`] if the index is out of range.
    pub fn slot(&self, index: usize) -> Result<usize> {
        let count = self.slots.len();
        self.slots.get(index).copied().ok_or(Error::UnknownParameter { index, count })
    }

    /// Returns the parameters as ones that are trained.
    pub(crate) fn trained(mut self) -> Self {
        self.sorted.iter_mut().for_each(|parameter| parameter.is_frozen = false);
        self
    }

    /// Returns the slots in the order of registration.
    #[must_use]
    pub fn slots(&self) -> &[usize] {
        &self.slots
    }

    /// Returns the slot of a parameter that has a gradient.
    pub(crate) fn trained_slot(&self, index: usize) -> Result<usize> {
        let slot = self.slot(index)?;
        let parameter = &self.sorted[slot];
        if parameter.is_frozen { Err(Error::Frozen { name: parameter.name.clone() }) } else { Ok(slot) }
    }

    /// Returns an error unless there is one value per parameter, in the order of registration, of
    /// the same type and length.
    pub(crate) fn check_values<M: Kernels, V: AsViewMut<M>>(&self, values: &mut [V]) -> Result<()> {
        let (expected, got) = (self.len(), values.len());
        if expected != got {
            return Err(Error::Count { expected, got });
        }
        let mut values = self.slots.iter().zip(values);
        values.try_for_each(|(slot, value)| self.check_value(*slot, &value.as_view_mut()?))
    }

    /// Returns an error if a parameter has another type or number of elements.
    pub(crate) fn check_value(&self, slot: usize, value: &impl Shape) -> Result<()> {
        let parameter = &self.sorted[slot];
        let (name, expected, got) = (|| parameter.name.clone(), parameter.dtype, value.dtype());
        if expected != got {
            return Err(Error::WrongType { name: name(), expected, got });
        }
        let (expected, got) = (parameter.len(), value.len());
        if expected == got { Ok(()) } else { Err(Error::Length { name: name(), expected, got }) }
    }
}

/// Sorts slices by slot. Returns an error if they do not match the parameters.
pub(crate) fn by_slot<'p, T: Element>(
    set: &ParameterSet,
    slices: impl IntoIterator<Item = &'p mut [T]>,
) -> Result<Vec<&'p mut [T]>> {
    let slots = set.slots().iter().copied().chain(std::iter::repeat(usize::MAX));
    let mut slices: Vec<(usize, &mut [T])> = slots.zip(slices).collect();
    let (expected, got) = (set.len(), slices.len());
    if expected != got {
        return Err(Error::Count { expected, got });
    }
    slices.sort_by_key(|(slot, _)| *slot);
    for (parameter, (_, slice)) in set.sorted().iter().zip(&slices) {
        let (expected, got) = (parameter.len(), slice.len());
        if expected != got {
            return Err(Error::Length { name: parameter.name().to_owned(), expected, got });
        }
    }
    Ok(slices.into_iter().map(|(_, slice)| slice).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_names_and_indices_follow_registration() {
        let names = ["b", "c", "a"];
        let set = ParameterSet::new(names.map(|name| Parameter::new::<f32>(name, [2, 3]))).unwrap();
        let sorted: Vec<&str> = set.sorted().iter().map(Parameter::name).collect();
        assert_eq!(sorted, ["a", "b", "c"]);
        assert_eq!(set.slots(), [1, 2, 0]);
        assert_eq!(set.slot(2).unwrap(), 0);
        assert!(matches!(set.slot(3), Err(Error::UnknownParameter { index: 3, count: 3 })));
    }

    #[test]
    fn duplicate_names_are_refused() {
        let names = ["w", "b", "w"];
        let outcome = ParameterSet::new(names.map(|name| Parameter::new::<f32>(name, [])));
        assert!(matches!(outcome, Err(Error::DuplicateName { name }) if name == "w"));
    }

    #[test]
    fn a_scalar_has_one_element_and_a_zero_dimension_none() {
        assert_eq!(Parameter::new::<f64>("scalar", []).len(), 1);
        assert!(Parameter::new::<f64>("empty", [4, 0]).is_empty());
    }
}
