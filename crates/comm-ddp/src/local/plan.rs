//! The division of parameters into fragments, and the steps at which these are sent.

use std::ops::Range;

use crate::Parameter;

/// The assignment of parameters to fragments. It depends on the parameters alone, so it is equal on
/// all ranks and in all runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FragmentPlan {
    /// The place of each slot.
    places: Vec<Place>,
    /// The number of elements of each fragment.
    lens: Vec<usize>,
}

/// The elements of a parameter within the fragments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) fragment: usize,
    pub(super) elements: Range<usize>,
}

impl FragmentPlan {
    /// Deals out parameters in the order of slots, each to the smallest fragment so far. So
    /// parameters of the same size are strided, like the layers in Streaming DiLoCo, and the sizes
    /// of fragments differ by at most the largest parameter.
    pub(super) fn new(sorted: &[Parameter], fragments: usize) -> Self {
        let mut lens = vec![0; fragments];
        let place = |parameter: &Parameter| {
            let fragment = (0..fragments).min_by_key(|&fragment| lens[fragment]).unwrap_or(0);
            let start = lens[fragment];
            lens[fragment] += parameter.len();
            Place { fragment, elements: start..lens[fragment] }
        };
        let places = sorted.iter().map(place).collect();
        Self { places, lens }
    }

    /// Returns the number of elements of each fragment.
    pub(super) fn lens(&self) -> &[usize] {
        &self.lens
    }

    /// Returns the place of each slot.
    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Returns the slots of a fragment with their elements.
    pub(super) fn members(&self, fragment: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let members = self.places.iter().enumerate().filter(move |(_, place)| place.fragment == fragment);
        members.map(|(slot, place)| (slot, place.elements.clone()))
    }

    /// Returns the fragment that is sent after an inner step. Inner steps count from 1. Fragments
    /// are evenly spaced, and the last is sent after every multiple of `sync_every`.
    pub(super) fn launched_at(&self, step: u64, sync_every: usize) -> Option<usize> {
        let count = self.lens.len() as u128;
        let position = u128::from(step) % sync_every.max(1) as u128;
        let offset = |fragment: usize| (fragment as u128 + 1) * sync_every as u128 / count;
        (0..self.lens.len()).find(|&fragment| offset(fragment) % sync_every.max(1) as u128 == position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(lens: &[usize], fragments: usize) -> FragmentPlan {
        let named = |(index, len): (usize, &usize)| Parameter::new::<f32>(format!("p{index:02}"), [*len]);
        FragmentPlan::new(&lens.iter().enumerate().map(named).collect::<Vec<_>>(), fragments)
    }

    fn slots(plan: &FragmentPlan, fragment: usize) -> Vec<usize> {
        plan.members(fragment).map(|(slot, _)| slot).collect()
    }

    #[test]
    fn equal_parameters_are_strided() {
        let plan = plan(&[5; 8], 3);
        assert_eq!(slots(&plan, 0), [0, 3, 6]);
        assert_eq!(slots(&plan, 1), [1, 4, 7]);
        assert_eq!(slots(&plan, 2), [2, 5]);
        assert_eq!(plan.lens(), [15, 15, 10]);
        assert_eq!(plan.places()[6], Place { fragment: 0, elements: 10..15 });
    }

    #[test]
    fn fragments_differ_by_at_most_the_largest_parameter() {
        let lens = [7, 100, 3, 3, 90, 1, 0, 40, 41, 12, 77];
        for fragments in 1..=lens.len() {
            let plan = plan(&lens, fragments);
            let (least, most) = (plan.lens().iter().min().unwrap(), plan.lens().iter().max().unwrap());
            assert!(most - least <= 100, "{plan:?}");
            assert_eq!(plan.lens().iter().sum::<usize>(), lens.iter().sum::<usize>());
        }
    }

    #[test]
    fn every_fragment_is_sent_once_in_every_period_and_evenly_spaced() {
        for sync_every in 1..14 {
            for fragments in 1..=sync_every {
                let plan = plan(&vec![1; fragments], fragments);
                let launched = |step| plan.launched_at(step, sync_every);
                assert_eq!(launched(sync_every as u64), Some(fragments - 1));
                for start in [1, 5 * sync_every as u64 + 1] {
                    let sent: Vec<usize> = (start..start + sync_every as u64).filter_map(launched).collect();
                    assert_eq!(sent, (0..fragments).collect::<Vec<_>>());
                }
            }
        }
        let plan = plan(&[1; 4], 4);
        let launches: Vec<u64> = (1..=20).filter(|&step| plan.launched_at(step, 10).is_some()).collect();
        assert_eq!(launches, [2, 5, 7, 10, 12, 15, 17, 20]);
    }
}
