"""From access maps to dependences, symbolic; knows no machine."""
