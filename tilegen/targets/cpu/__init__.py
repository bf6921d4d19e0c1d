"""The same plan in C++ on threads."""
