"""One folder per device. Adding one changes nothing outside its folder."""
