"""The chapter's closed forms, as pure functions of numbers and tensors; exact to the dtype that they are given.

Equation numbers (11.x) and `the chapter` are of the textbook chapter on residual networks and normalisation. Tests and
experiments put these beside what networks measure; no network is made of them.
"""

from verydeep.theory.batch_norm import BatchNorm as BatchNorm
from verydeep.theory.batch_norm import BatchNormGradients as BatchNormGradients
from verydeep.theory.batch_norm import batch_norm as batch_norm
from verydeep.theory.batch_norm import batch_norm_backward as batch_norm_backward
from verydeep.theory.batch_norm import batch_norm_gradients as batch_norm_gradients
from verydeep.theory.batch_norm import prediction_affine as prediction_affine
from verydeep.theory.chain import plain_chain as plain_chain
from verydeep.theory.chain import residual_chain as residual_chain
from verydeep.theory.effective_lr import effective_lr as effective_lr
from verydeep.theory.effective_lr import effective_lrs as effective_lrs
from verydeep.theory.effective_lr import equilibrium_angle as equilibrium_angle
from verydeep.theory.effective_lr import equilibrium_norm as equilibrium_norm
from verydeep.theory.effective_lr import norm_after_step as norm_after_step
from verydeep.theory.effective_lr import step_angle as step_angle
from verydeep.theory.normalization import NORMALIZATIONS as NORMALIZATIONS
from verydeep.theory.normalization import Normalization as Normalization
from verydeep.theory.normalization import normalize as normalize
from verydeep.theory.normalization import shared_cells as shared_cells
from verydeep.theory.path import all_paths as all_paths
from verydeep.theory.path import jacobian_by_length as jacobian_by_length
from verydeep.theory.path import jacobian_product as jacobian_product
from verydeep.theory.path import num_paths as num_paths
from verydeep.theory.path import path_jacobians as path_jacobians
from verydeep.theory.path import path_length_distribution as path_length_distribution
from verydeep.theory.path import path_terms as path_terms
from verydeep.theory.path import paths_by_length as paths_by_length
from verydeep.theory.path import unravelled_terms as unravelled_terms
from verydeep.theory.unit import basic_weights as basic_weights
from verydeep.theory.unit import bottleneck_weights as bottleneck_weights
from verydeep.theory.unit import fixup_scale as fixup_scale
from verydeep.theory.unit import survival_probabilities as survival_probabilities
from verydeep.theory.variance import VARIANCE_LAWS as VARIANCE_LAWS
from verydeep.theory.variance import accumulated_variance as accumulated_variance
from verydeep.theory.variance import normalized_variance as normalized_variance
from verydeep.theory.variance import scaled_variance as scaled_variance
from verydeep.theory.variance import scaled_variance_bound as scaled_variance_bound
from verydeep.theory.variance import unscaled_variance as unscaled_variance
from verydeep.theory.variance import zero_init_variance as zero_init_variance
