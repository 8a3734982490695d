// A neighbour method with the tables of one edge type. A method is a class in a header of its own that has
//   kReadsEveryEdge    whether a row costs all its edges, not only its picks
//   edges(), nbytes()  the edges that its tables describe, and their bytes
//   may_replace()      whether it can draw with replacement
//   with_picker(s, f)  calls f with something that makes a picker (sample.hpp), one for each thread
//   bind(methods)      adds its constructor to the Python class
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "labor.hpp"
#include "sample.hpp"
#include "temporal.hpp"
#include "weighted.hpp"

namespace atta {

// The list of all methods: a new method is registered here and nowhere else.
using AnyMethod = std::variant<Weighted, Temporal, Labor>;

// The object that Python holds. Uniform sampling needs no tables: it is a null pointer to a Method.
class Method {
 public:
  template <class T>
  explicit Method(T&& of) : any_(std::forward<T>(of)) {}

  std::size_t nbytes() const {
    return std::visit([](const auto& m) { return m.nbytes(); }, any_);
  }
  std::size_t edges() const {
    return std::visit([](const auto& m) { return m.edges(); }, any_);
  }
  bool may_replace() const {
    return std::visit([](const auto& m) { return m.may_replace(); }, any_);
  }
  bool reads_every_edge() const {
    return std::visit([](const auto& m) { return std::remove_reference_t<decltype(m)>::kReadsEveryEdge; }, any_);
  }
  template <class F>
  void with_picker(const SampleSpec& spec, F f) const {
    std::visit([&](const auto& m) { m.with_picker(spec, f); }, any_);
  }

  // The method if it is of this kind, else null.
  template <class Kind>
  const Kind* as() const {
    return std::get_if<Kind>(&any_);
  }

 private:
  AnyMethod any_;
};

// Calls f once with a function that makes pickers of the method. The loops over rows are compiled for each kind of
// picker.
template <class F>
void with_picker(const Method* method, const SampleSpec& spec, F f) {
  if (method != nullptr) return method->with_picker(spec, f);
  f([&] { return UniformPicker(spec); });
}

inline void check_method(const Method* method, const SampleSpec& spec, std::size_t edges) {
  if (spec.fan_out < -1) throw std::invalid_argument("fan_out: " + std::to_string(spec.fan_out) + " must be -1 (all) or >= 0");
  if (spec.replace && spec.fan_out > INT32_MAX) throw std::invalid_argument("fan_out: more than 2^31 - 1 neighbours of one row");
  if (method == nullptr) return;
  if (method->edges() != edges) bad("method", "its tables were made for other edges");
  if (spec.replace && !method->may_replace()) bad("replace", "this method draws no edge twice");
}

inline void bind_methods(nb::module_& m) {
  nb::class_<Method> methods(m, "Method");
  methods.def_prop_ro("nbytes", &Method::nbytes);
  const auto each = [&]<class... Kind>(const std::variant<Kind...>* /*all*/) { (Kind::bind(methods), ...); };
  each(static_cast<const AnyMethod*>(nullptr));
}

}  // namespace atta
