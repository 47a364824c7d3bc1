// The arguments of a kernel against what it needs. Arrays are seen through Python's buffer protocol.
#include "hpcrec/signature.h"

#include <array>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace hpcrec {
namespace {
constexpr int64_t widest = 2147483647;  // as in checks.py
constexpr char any = '*', fixed = '=';

struct Type {
  const char* name;
  const char* formats;  // of the buffer protocol
  bool shared;          // all parameters of such a type have the same one in a call
};
constexpr Type types[] = {{"int64", "lq", false},  {"int32", "i", false}, {"uint8", "B", false},
                          {"float32", "f", false}, {"float", "fd", true}, {"number", "lf", true}};
static_assert(sizeof(long) == 8);

struct Size {
  char letter;  // or any, or fixed
  int64_t plus;
};

struct Parameter {
  bool written = false, optional = false;
  const Type* type = nullptr;  // none: an integer
  std::vector<Size> sizes;
};

// The sizes and the type that a call has shown so far.
struct Shown {
  std::array<int64_t, 26> sizes;
  char format = 0;

  bool same(Size size, int64_t found) {
    if (size.letter == any) return true;
    if (size.letter == fixed) return found == size.plus;
    const int64_t n = found - size.plus;
    if (n < (size.letter == 'D' ? 1 : 0) || n > widest) return false;
    int64_t& known = sizes[static_cast<size_t>(size.letter - 'A')];
    if (known < 0) known = n;
    return known == n;
  }
};

struct Bounds {
  const char *begin, *end;
  bool written;
};

bool whole_fits(PyObject* given, Size size, Shown& shown) {
  if (!PyLong_CheckExact(given)) return false;
  int overflow = 0;
  const int64_t found = PyLong_AsLongLongAndOverflow(given, &overflow);
  if (overflow) return false;
  return size.letter == fixed ? found >= size.plus : shown.same(size, found);
}

bool view_fits(const Py_buffer& view, const Parameter& wanted, Shown& shown) {
  const char format = view.format && view.format[0] && !view.format[1] ? view.format[0] : '\0';
  if (!format || !std::strchr(wanted.type->formats, format)) return false;
  if (wanted.type->shared && shown.format && shown.format != format) return false;
  if (wanted.type->shared) shown.format = format;
  if (wanted.written && view.readonly) return false;
  if (static_cast<size_t>(view.ndim) != wanted.sizes.size()) return false;
  for (size_t i = 0; i < wanted.sizes.size(); ++i)
    if (!shown.same(wanted.sizes[i], view.shape[i])) return false;
  return reinterpret_cast<uintptr_t>(view.buf) % static_cast<uintptr_t>(view.itemsize) == 0 &&
         PyBuffer_IsContiguous(&view, 'C');
}

bool apart(const std::vector<Bounds>& seen, const Bounds& other) {
  for (const Bounds& one : seen)
    if ((one.written || other.written) && one.begin < other.end && other.begin < one.end) return false;
  return true;
}

class Signature {
 public:
  Signature(nb::dict names, nb::object key, nb::object wanted, nb::object array)
      : names_(std::move(names)), key_(std::move(key)), wanted_(std::move(wanted)), array_(std::move(array)) {}

  void add(const std::string& text);

  bool fits(PyObject* const* given, size_t n) const {
    if (n != parameters_.size() && n != fewest_) return false;
    if (PyDict_GetItem(names_.ptr(), key_.ptr()) != wanted_.ptr()) return false;
    Shown shown;
    shown.sizes.fill(-1);
    std::vector<Bounds> seen;
    seen.reserve(n);
    for (size_t i = 0; i < n; ++i) {
      const Parameter& wanted = parameters_[i];
      if (given[i] == Py_None) {
        if (!wanted.optional) return false;
      } else if (!wanted.type) {
        if (!whole_fits(given[i], wanted.sizes[0], shown)) return false;
      } else if (!array_fits(given[i], wanted, shown, seen)) {
        return false;
      }
    }
    return true;
  }

 private:
  bool array_fits(PyObject* given, const Parameter& wanted, Shown& shown, std::vector<Bounds>& seen) const {
    if (!PyObject_TypeCheck(given, reinterpret_cast<PyTypeObject*>(array_.ptr()))) return false;
    Py_buffer view;
    if (PyObject_GetBuffer(given, &view, PyBUF_RECORDS_RO) != 0) {
      PyErr_Clear();
      return false;
    }
    const char* begin = static_cast<const char*>(view.buf);
    const Bounds bounds{begin, begin + view.len, wanted.written};
    const bool good = view_fits(view, wanted, shown) && (view.len == 0 || apart(seen, bounds));
    if (view.len) seen.push_back(bounds);
    PyBuffer_Release(&view);
    return good;
  }

  nb::dict names_;
  nb::object key_, wanted_, array_;
  std::vector<Parameter> parameters_;
  size_t fewest_ = SIZE_MAX;  // arguments, where the others can be left out
};

Size size_of(const std::string& text) {
  if (text == "any") return {any, 0};
  if (text[0] < 'A' || text[0] > 'Z') return {fixed, std::stoll(text)};
  return {text[0], text.size() > 1 ? std::stoll(text.substr(text.find('+') + 1)) : 0};
}

void Signature::add(const std::string& text) {
  if (text == "...") {
    fewest_ = parameters_.size();
    return;
  }
  const size_t colon = text.find(": "), bracket = text.find('[');
  if (colon == std::string::npos) throw std::invalid_argument("not a parameter of a kernel: " + text);
  Parameter found;
  found.written = text.rfind("written ", 0) == 0;
  found.optional = text[colon - 1] == '?';
  if (bracket == std::string::npos) {
    found.sizes.push_back(size_of(text.substr(colon + 2)));
  } else {
    const std::string name = text.substr(colon + 2, bracket - colon - 2);
    for (const Type& type : types)
      if (name == type.name) found.type = &type;
    if (!found.type) throw std::invalid_argument("not a type of a kernel's array: " + text);
    for (size_t at = bracket + 1, end; at < text.size(); at = end + 2) {
      end = text.find_first_of(",]", at);
      found.sizes.push_back(size_of(text.substr(at, end - at)));
    }
  }
  parameters_.push_back(std::move(found));
}

PyObject* fits(PyObject* self, PyObject* const* given, Py_ssize_t n) {
  const auto* signature = static_cast<const Signature*>(PyCapsule_GetPointer(self, nullptr));
  if (signature->fits(given, static_cast<size_t>(n))) Py_RETURN_TRUE;
  Py_RETURN_FALSE;
}

// A function of C and no method, which would take twice as long to call as an array to look at.
PyMethodDef fits_method = {"fits", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(fits)), METH_FASTCALL,
                           "Whether these arguments fit"};

nb::object signature(nb::sequence parameters, nb::dict names, nb::str key, nb::object wanted) {
  auto made = std::make_unique<Signature>(names, key, wanted, nb::module_::import_("numpy").attr("ndarray"));
  for (nb::handle text : parameters) made->add(nb::cast<nb::str>(text).c_str());
  const nb::capsule held(made.release(), [](void* p) noexcept { delete static_cast<Signature*>(p); });
  return nb::steal(PyCFunction_New(&fits_method, held.ptr()));
}
}  // namespace

void bind_signature(nb::module_& m) {
  m.def("signature", &signature, nb::arg("parameters"), nb::arg("names"), nb::arg("key"), nb::arg("wanted"));
}

}  // namespace hpcrec
