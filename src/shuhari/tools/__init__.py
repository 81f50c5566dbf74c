"""Tools beside training: plots, exports, profiles and machine reports. No training code imports them."""
