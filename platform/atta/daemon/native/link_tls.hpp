// TLS 1.3 on the socket of a link. Both ends know a secret of this one connection, which the owner has given to its
// peer over gRPC, so there are no certificates here: who cannot prove the secret gets no link.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#if __has_include(<openssl/ssl.h>) && defined(ATTA_LINK_TLS)
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace atta {

inline constexpr bool kHasLinkTls = true;
inline constexpr std::size_t kLinkSecretBytes = 32;

class LinkTls {
 public:
  // `serves`: whether this is the owner's end. The socket stays the caller's.
  LinkTls(int fd, std::string secret, bool serves) : fd_(fd), secret_(std::move(secret)) {
    if (secret_.size() != kLinkSecretBytes) throw std::invalid_argument("a link's secret has 32 bytes");
    static SSL_CTX* const contexts[] = {context(false), context(true)};  // for the life of the process
    ssl_.reset(SSL_new(contexts[serves ? 1 : 0]));
    if (ssl_ == nullptr || SSL_set_fd(ssl_.get(), fd) != 1) throw std::bad_alloc();
    SSL_set_app_data(ssl_.get(), this);
    serves ? SSL_set_accept_state(ssl_.get()) : SSL_set_connect_state(ssl_.get());
  }
  LinkTls(const LinkTls&) = delete;

  // Proves the secret to the other end, and asks for its proof. Returns why there is none; null: there is.
  const char* shake_hands(int timeout_ms) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    while (true) {
      ERR_clear_error();
      const int done = SSL_do_handshake(ssl_.get());
      // A server that chooses a certificate of its own instead of the secret is not the owner.
      if (done == 1) return SSL_session_reused(ssl_.get()) == 1 ? nullptr : "the other end has not used the secret";
      const int error = SSL_get_error(ssl_.get(), done);
      if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return "the other end does not know the secret";
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
      pollfd waits{fd_, static_cast<short>(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT), 0};
      if (left <= 0 || (::poll(&waits, 1, static_cast<int>(left)) < 0 && errno != EINTR)) return "the other end does not answer";
    }
  }

  // As ::send without waiting. What came back as EAGAIN must be sent again with the same first bytes.
  ssize_t send(const std::byte* from, std::size_t count) {
    if (since_new_key_ >= kBytesPerKey) {
      SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
      since_new_key_ = 0;
    }
    std::size_t sent = 0;
    ERR_clear_error();
    if (SSL_write_ex(ssl_.get(), from, count, &sent) == 1) {
      since_new_key_ += sent;
      return static_cast<ssize_t>(sent);
    }
    const int error = SSL_get_error(ssl_.get(), 0);
    errno = error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_WANT_READ ? EAGAIN : EPIPE;
    return -1;
  }

  // As ::recv without waiting. It fills `room` unless nothing more has come.
  ssize_t recv(std::byte* out, std::size_t room) {
    std::size_t got = 0;
    drained_ = false;
    while (got < room) {
      std::size_t count = 0;
      ERR_clear_error();
      if (SSL_read_ex(ssl_.get(), out + got, room - got, &count) == 1) {
        got += count;
        continue;
      }
      const int error = SSL_get_error(ssl_.get(), 0);
      drained_ = true;     // or the connection has ended
      if (got > 0) break;  // an error comes again with the next call
      if (error == SSL_ERROR_ZERO_RETURN) return 0;
      errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
      return -1;
    }
    return static_cast<ssize_t>(got);
  }

  // Whether bytes have left the socket that `recv` could hand out. The socket does not tell of them. Part of a record is
  // none: its rest makes the socket readable.
  bool holds() const { return !drained_ && SSL_has_pending(ssl_.get()) == 1; }

 private:
  static constexpr std::uint64_t kBytesPerKey = std::uint64_t{64} << 30;  // AES-GCM bears 380 GB (RFC 8446, 5.5)
  static constexpr std::size_t kReadAhead = std::size_t{128} << 10;
  static constexpr const char* kName = "atta-link";

  static SSL_CTX* context(bool serves) {
    SSL_CTX* made = SSL_CTX_new(serves ? TLS_server_method() : TLS_client_method());
    if (made == nullptr || SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(made, "TLS_AES_128_GCM_SHA256") != 1)
      throw std::bad_alloc();
    SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(made, 1);
    SSL_CTX_set_default_read_buffer_len(made, kReadAhead);
    SSL_CTX_set_num_tickets(made, 0);
    SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
    if (!serves) SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);  // no authority is known, so no certificate is good
    if (serves)
      SSL_CTX_set_psk_server_callback(made, [](SSL* ssl, const char* name, unsigned char* out, unsigned int room) {
        return std::strcmp(name, kName) == 0 ? secret_of(ssl, out, room) : 0U;
      });
    else
      SSL_CTX_set_psk_client_callback(
          made, [](SSL* ssl, const char*, char* name, unsigned int name_room, unsigned char* out, unsigned int room) {
            if (name_room <= std::strlen(kName)) return 0U;
            std::memcpy(name, kName, std::strlen(kName) + 1);
            return secret_of(ssl, out, room);
          });
    return made;
  }

  static unsigned int secret_of(SSL* ssl, unsigned char* out, unsigned int room) {
    const std::string& secret = static_cast<const LinkTls*>(SSL_get_app_data(ssl))->secret_;
    if (room < secret.size()) return 0;
    std::memcpy(out, secret.data(), secret.size());
    return static_cast<unsigned int>(secret.size());
  }

  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  int fd_;
  std::string secret_;
  std::unique_ptr<SSL, Free> ssl_;
  std::uint64_t since_new_key_ = 0;
  bool drained_ = true;  // whether the last `recv` took all that there was
};

}  // namespace atta

#else

namespace atta {

inline constexpr bool kHasLinkTls = false;

// This build has no OpenSSL. Links between machines stay off where daemons have certificates.
class LinkTls {
 public:
  ssize_t send(const std::byte*, std::size_t) { return -1; }
  ssize_t recv(std::byte*, std::size_t) { return -1; }
  bool holds() const { return false; }
};

}  // namespace atta

#endif
