#pragma once
#include <string_view>
#include <vector>

#include <tightwire/session_options.hpp>

namespace tightwire::c {

/// Reads "int8:block=256 exact=*.bias feedback=off ...", as tightwire_session_open documents it,
/// for a job of so many ranks; for 0 all but where they are.
/// Throws Error(invalid_argument) that names the word and what is known.
SessionOptions parse_session(std::string_view specification, int ranks);

/// The same from words that were told apart already.
SessionOptions parse_session_words(const std::vector<std::string_view>& words, int ranks);

/// The words of a specification. Spaces between brackets are part of a word.
std::vector<std::string_view> words_of(std::string_view text);

}  // namespace tightwire::c
