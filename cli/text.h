/* Text for people and for programs, made of bytes that nobody vouches for: names, labels and values
 * come from a server that anybody may have written to. Pure, but for what prints. */
#ifndef TEXT_H
#define TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Room for `length` bytes in the escaped form, with the final zero byte. */
#define TEXT_ROOM(length) (4 * (length) + 1)

/* Writes bytes so that a terminal takes no orders from them: printable ASCII and UTF-8 stay, a
 * backslash is doubled, everything else is shown as \xNN. What does not fit is left out, in whole
 * characters. Returns the length; there is a final zero byte. `size` > 0. */
size_t text_escape(char *out, size_t size, const char *bytes, size_t length);

/* Columns that an escaped text takes. */
size_t text_width(const char *text);

/* Prints a text that text_escape made as a JSON string. */
void text_json(FILE *file, const char *text);

/* "2026-11-30 09:15:08" in local time; the number itself where that is no time. */
#define TEXT_TIME 32
void text_time(char out[TEXT_TIME], int64_t unix_seconds);

/* Seconds with up to three decimals: "30", "0.5". */
#define TEXT_SECONDS 32
void text_seconds(char out[TEXT_SECONDS], int64_t milliseconds);

#endif
