#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <tightwire/session_options.hpp>

namespace tightwire::c {

/// Reads "int8:block=256 exact=*.bias feedback=off ...", as tightwire_session_open documents it,
/// for a job of so many ranks; for 0 all but where they are.
/// Throws Error(invalid_argument) that names the word and what is known.
SessionOptions parse_session(std::string_view specification, int ranks);

/// A word of a specification, or what stands for one in a file.
struct Word {
  std::string name;  ///< of an option; a codec has none
  std::string value;
  std::string place;  ///< where it stands, and how it is written there, for errors
};

/// The same from words that were told apart already. What is wrong is told with the place of its word; of options that
/// do not go together, with that of the last.
SessionOptions read_words(const std::vector<Word>& words, int ranks);

/// The words of a specification. Spaces between brackets are part of a word.
std::vector<std::string_view> words_of(std::string_view text);

}  // namespace tightwire::c
