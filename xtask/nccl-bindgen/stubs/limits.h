/* Written out, as macros that lead to macros of the compiler are not evaluated. */
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
