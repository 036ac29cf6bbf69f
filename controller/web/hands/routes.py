"""The routes by which people sign in and out, order what a run does, and see what has become of it.

A page that orders nothing shows what an order will do; sending it is a POST of a form that was made for this session,
answered with a redirect to a page that tells the state. So all of it works without a script.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar, cast

from aiohttp import web

from controller.ports.orders import ORDERS_PER_MIN
from controller.runtime.clock import NS_PER_S, Clock
from controller.web.config import WebSettings
from controller.web.hands.exposure import NOT_ENCRYPTED, Approach, Exposure
from controller.web.hands.order_form import ACTIONS, GPU_ACTIONS, MAX_NAME, Action, new_correlation, read_order
from controller.web.hands.pages import (
    SIGN_IN,
    SIGN_OUT,
    OrderPage,
    render_order,
    render_refusal,
    render_sent,
    render_sign_in,
    render_signed_in,
    sent_path,
)
from controller.web.hands.preview import min_power_limit_w
from controller.web.hands.sent_orders import SentOrders
from controller.web.hands.sessions import SESSION_S, Session, Sessions, new_id
from controller.web.live.site_state import GpuKey, SiteState, Subject
from controller.web.pages.gpus import GpuView, gpu_views
from controller.web.pages.overview import running_runs
from controller.web.pages.words import order_path, subject_path
from controller.web.serving import page_response, zone_of
from publishers.messages.topics import RunKey, is_name
from publishers.mqtt.receiving.quotas import TokenBucket
from publishers.shared.files.disk_thread import DiskThread
from publishers.shared.http.problems import ProblemError, invalid_request, unavailable
from publishers.shared.http.requests import BODY_TIMEOUT_S, path_name, path_user, read_form
from publishers.shared.http.server import ConcurrencyLimit, Route, Stream, is_this_machine
from publishers.shared.http.write_access import FILE_TIMEOUT_S, Writer, WriteTokens, digest_of
from publishers.shared.log_once import LogLimiter
from publishers.shared.printable import printable
from publishers.shared.recent_dict import RecentDict

MAX_BODY_BYTES: Final = 4_096
WRONG_TOKENS_PER_MIN: Final = 10
"""Of one address. Whoever shows a token that is known uses nothing up: many people may share an address."""
MAX_ADDRESSES: Final = 1_024
MAX_ORDERED: Final = 1_024
"""Runs and GPUs whose orders are counted."""
ANSWER_WAIT_S: Final = 3.0
"""A page about an order waits for so long for an answer, which comes within seconds as a rule [s]."""
LOOK_S: Final = 5.0
"""Between two looks at whether whoever reads a stream may do so still [s]."""
MAX_BY: Final = 64
OPEN: Final = frozenset({"health", "metrics", "static"})
"""Routes that never need a session."""
PROGRAMS: Final = "/v1/"
_FORGED: Final = "This form is not valid any more. Open it again."
_THEN: Final = re.compile(r"/(?![/\\])[A-Za-z0-9._~%/?=&+:-]{0,1000}\Z")
"""Where somebody may be sent after signing in: a page of ours."""
_COOKIE: Final = "gridchase-session"

_LOGGER = logging.getLogger(__name__)
Counted = TypeVar("Counted")
_Handler = Callable[[web.Request, Approach], Awaitable[web.Response]]


class _RefusedError(Exception):
    """Something is not done, and a page says why."""

    def __init__(self, status: HTTPStatus, detail: str, link: tuple[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.link = link


class Hands:
    """Lets people sign in, and order what runs do.

    Args:
        settings: what is offered.
        state: what is known of the site.
        sent: sends orders; None: none are taken.
        clock: the time.
    """

    def __init__(self, settings: WebSettings, *, state: SiteState, sent: SentOrders | None, clock: Clock) -> None:
        self._settings = settings
        self._state = state
        self._sent = sent
        self._clock = clock
        self._exposure = Exposure(settings.trusted_proxies)
        self._sessions = Sessions()
        self._attempts: RecentDict[str, TokenBucket] = RecentDict(MAX_ADDRESSES)
        self._ordered: RecentDict[Subject, TokenBucket] = RecentDict(MAX_ORDERED)
        self._log = LogLimiter(self._monotonic_s)
        if settings.orders and not (
            settings.tls_cert_file or settings.trusted_proxies or is_this_machine(settings.host)
        ):
            _LOGGER.warning(
                "web.orders = true: people sign in on this machine alone; of others it would be said: %s", NOT_ENCRYPTED
            )
        path = Path(settings.token_file)
        self._tokens = WriteTokens(path, setting="web.token_file") if settings.token_file else None
        self._disk = DiskThread("gridchase web tokens", timeout_s=FILE_TIMEOUT_S)

    def routes(self) -> list[Route]:
        """Return the routes; none where nobody signs in."""
        if self._tokens is None:
            return []
        signing = ConcurrencyLimit(n_at_once=32, n_waiting=32)  # more than one address may send slowly at once
        limit, waiting = ConcurrencyLimit(n_at_once=8, n_waiting=16), ConcurrencyLimit(n_at_once=64, n_waiting=0)
        routes = [
            self._route("signInPage", "GET", SIGN_IN, self._sign_in_page, signing),
            self._route("signIn", "POST", SIGN_IN, self._sign_in, signing),
            self._route("signOut", "POST", SIGN_OUT, self._sign_out, signing),
        ]
        if self._sent is not None:
            run, gpu = "/run/{user}/{job}/{run}/order", "/gpu/{node}/{gpu_uuid}/order"
            routes += [
                self._route("orderPage", "GET", run, self._order_page, limit),
                self._route("order", "POST", run, self._order, limit),
                self._route("gpuOrderPage", "GET", gpu, self._order_page, limit),
                self._route("gpuOrder", "POST", gpu, self._order, limit),
                self._route("sentOrder", "GET", "/order/{correlation}", self._sent_order, waiting),
            ]
        return routes

    def guarded(self, routes: Iterable[Route]) -> list[Route]:
        """Return routes that show nothing to whoever is not signed in, if that is wanted."""
        if not self._settings.sign_in_to_read:
            return list(routes)
        return [route if route.name in OPEN else replace(route, handle=self._guarding(route)) for route in routes]

    def _guarding(self, route: Route) -> Callable[[web.Request, str], Awaitable[web.Response | Stream]]:
        async def handle(request: web.Request, client: str) -> web.Response | Stream:
            approach = self._exposure.approach_of(request)
            if not approach.fault and await self._may_read(request, approach):
                answer = await route.handle(request, client)
                if isinstance(answer, Stream) and answer.is_endless:
                    return replace(answer, pieces=self._while_signed_in(answer.pieces, request, approach))
                return answer
            if route.path.startswith(PROGRAMS):
                detail = approach.fault or "reading needs a token: send it as Authorization: Bearer TOKEN, or sign in"
                headers = {"WWW-Authenticate": 'Bearer realm="gridchase"'}
                raise ProblemError(HTTPStatus.UNAUTHORIZED, "no_token", detail, headers=headers)
            return self._to_sign_in(request)

        return handle

    async def _may_read(self, request: web.Request, approach: Approach) -> bool:
        return await self._session(request, approach) is not None or await self._bearer(request, approach) is not None

    async def _while_signed_in(
        self, pieces: AsyncIterator[bytes], request: web.Request, approach: Approach
    ) -> AsyncGenerator[bytes, None]:
        """Yield what is sent, and end once the session has ended, or the token is not in the file any more."""
        looked_s = self._monotonic_s()
        try:
            async for piece in pieces:
                if self._monotonic_s() - looked_s >= LOOK_S:
                    if not await self._may_read(request, approach):
                        return
                    looked_s = self._monotonic_s()
                yield piece
        except ProblemError:
            return  # the file of tokens cannot be read in time
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

    def _route(self, name: str, method: str, path: str, handler: _Handler, limit: ConcurrencyLimit) -> Route:
        async def handle(request: web.Request, _client: str) -> web.Response:
            approach = self._exposure.approach_of(request)
            try:
                _check_approach(approach)
                return await handler(request, approach)
            except _RefusedError as refusal:
                return self._refusal(request, refusal.status, str(refusal), refusal.link)
            except ProblemError as error:
                detail, headers = error.problem.detail, error.headers
                response = self._refusal(
                    request, HTTPStatus(error.problem.status), f"{detail[:1].upper()}{detail[1:]}."
                )
                response.headers.update(headers)
                return response

        return Route(name=name, method=method, path=path, handle=handle, limit=limit)

    def _refusal(
        self, request: web.Request, status: HTTPStatus, detail: str, link: tuple[str, str] | None = None
    ) -> web.Response:
        now_s, zone = self._clock.now_s(), zone_of(request)
        page = render_refusal(status.phrase, detail, link=link, now_s=now_s, zone=zone)
        return page_response(request, page, status=status)

    # Sign in and out.

    async def _sign_in_page(self, request: web.Request, approach: Approach) -> web.Response:
        session_id = self._session_id(request, approach)
        session = await self._session(request, approach)
        now_s, zone = self._clock.now_s(), zone_of(request)
        if session is not None:
            code = self._sessions.form_code(session_id, SIGN_OUT)
            return page_response(request, render_signed_in(session.name, code=code, now_s=now_s, zone=zone))
        return self._ask_for_token(request, approach, then=_then(request.query.get("then", "/")))

    def _ask_for_token(self, request: web.Request, approach: Approach, *, then: str, fault: str = "") -> web.Response:
        """Return the form for a token; whoever has no cookie yet gets one, without which the form is worth nothing."""
        session_id = self._session_id(request, approach) or new_id()
        code = self._sessions.form_code(session_id, SIGN_IN)
        page = render_sign_in(code=code, then=then, fault=fault, now_s=self._clock.now_s(), zone=zone_of(request))
        status = HTTPStatus.FORBIDDEN if fault else HTTPStatus.OK
        response = page_response(request, page, status=status)
        _set_cookie(response, approach, session_id)
        return response

    async def _sign_in(self, request: web.Request, approach: Approach) -> web.Response:
        attempts, fields = self._attempts_of(approach), await self._read(request)
        self._check(fields, self._session_id(request, approach), SIGN_IN)
        then, name = _then(fields.get("then", "/")), fields.get("name", "").strip()
        if len(name) > MAX_NAME or not name.isprintable():
            fault = f"A name has {MAX_NAME} printable characters at most."
            return self._ask_for_token(request, approach, then=then, fault=fault)
        digest = digest_of(fields.get("token", "").strip())
        writer = await self._owner_of(digest)
        if writer is None:
            attempts.spend()
            if self._log.allows("refused"):
                _LOGGER.warning("a sign-in from %s is refused: its token is not known", printable(approach.address))
            fault = "This token is not among those that may sign in."
            return self._ask_for_token(request, approach, then=then, fault=fault)
        by = writer.name if writer.user is not None or not name else f"{name}, {writer.name}"
        self._sessions.end(self._session_id(request, approach))
        session_id = self._sessions.begin(writer, by[:MAX_BY], digest, self._monotonic_s())
        _LOGGER.info("%s signs in, from %s", printable(by), printable(approach.address))
        response = _redirect(then)
        _set_cookie(response, approach, session_id)
        return response

    def _attempts_of(self, approach: Approach) -> TokenBucket:
        """Return what is left of the attempts of an address.

        Raises:
            ProblemError: nothing is.
        """
        now_s = self._monotonic_s()
        bucket = self._attempts.get(approach.address)
        if bucket is None:
            bucket = self._attempts[approach.address] = TokenBucket(WRONG_TOKENS_PER_MIN / 60.0, now_s, burst_s=60.0)
        if not bucket.has_one(now_s):
            detail = f"more than {WRONG_TOKENS_PER_MIN:g} wrong tokens a minute from one address: try again in a minute"
            status = HTTPStatus.TOO_MANY_REQUESTS
            raise ProblemError(status, "too_many", detail, headers={"Retry-After": "60"})
        return bucket

    async def _sign_out(self, request: web.Request, approach: Approach) -> web.Response:
        if await self._session(request, approach) is not None:  # nobody else may keep those waiting who sign in
            session_id = self._session_id(request, approach)
            self._check(await self._read(request), session_id, SIGN_OUT)
            self._sessions.end(session_id)
        response = _redirect("/")
        _set_cookie(response, approach, "")
        return response

    # Orders.

    async def _order_page(self, request: web.Request, approach: Approach) -> web.Response:
        session = await self._session(request, approach)
        if session is None:
            return self._to_sign_in(request)
        fields, key = dict(request.query), _subject_of(request)
        action, (run_key, gpu) = _action_of(fields, key), self._found(key, session)
        is_filled = bool(fields.keys() - {"action"})
        now_s, zone, faults = self._clock.now_s(), zone_of(request), list[str]()
        form = read_order(fields, action, now_s=now_s, zone=zone, faults=faults) if is_filled else None
        correlation = new_correlation()
        code = self._sessions.form_code(self._session_id(request, approach), f"{order_path(key)}\n{correlation}")
        page = OrderPage(
            key=key,
            run=None if run_key is None else self._state.runs[run_key],
            gpu=gpu,
            action=action,
            name=session.name,
            fields=fields,
            faults=faults,
            form=form,
            hidden={"correlation": correlation, "code": code},
            min_power_limit_w=0.0 if run_key is None else min_power_limit_w(self._state, run_key, now_s),
        )
        return page_response(request, render_order(page, now_s=now_s, zone=zone))

    async def _order(self, request: web.Request, approach: Approach) -> web.Response:
        session, key = await self._session(request, approach), _subject_of(request)
        if session is None:  # before the body is read: nobody else may keep those waiting who are signed in
            link = f"{SIGN_IN}?then={_quoted(subject_path(key))}", "Sign in"
            raise _RefusedError(HTTPStatus.FORBIDDEN, "You are not signed in any more; nothing was ordered.", link)
        fields = await self._read(request)
        action = _action_of(fields, key)
        correlation = fields.get("correlation", "")
        self._check(fields, self._session_id(request, approach), f"{order_path(key)}\n{correlation}")
        self._found(key, session)
        now_s, faults = self._clock.now_s(), list[str]()
        form = read_order(fields, action, now_s=now_s, zone=zone_of(request), faults=faults)
        sent = cast("SentOrders", self._sent)
        if form is None or not is_name(correlation):
            raise _RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, " ".join(faults), (order_path(key, action), "Back"))
        if sent.find(correlation) is None:  # the node would not hear it, and nobody would say so
            self._count(self._ordered, key, ORDERS_PER_MIN, "orders a minute about one run or GPU")
        by_owner = session.writer.user is not None
        order = form.order(by=session.name, by_owner=by_owner, correlation=correlation, now_s=now_s)
        if not sent.send(key, order, address=approach.address):
            raise unavailable("no_broker", "the broker is away, nothing was ordered: try again")
        return _redirect(sent_path(correlation))

    async def _sent_order(self, request: web.Request, approach: Approach) -> web.Response:
        if await self._session(request, approach) is None:
            return self._to_sign_in(request)
        sent_orders = cast("SentOrders", self._sent)
        sent = sent_orders.find(path_name(request, "correlation"))
        if sent is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "No such order was sent from here lately.", ("/log", "The log"))
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WAIT_S):
                await sent.is_answered.wait()
        now_s = self._clock.now_s()
        run = None if isinstance(sent.key, GpuKey) else self._state.runs.get(sent.key)
        page = render_sent(
            sent,
            run.energy if run is not None else None,
            is_overdue=sent_orders.is_overdue(sent),
            now_s=now_s,
            zone=zone_of(request),
        )
        return page_response(request, page)

    def _found(self, key: Subject, session: Session) -> tuple[RunKey | None, GpuView | None]:
        """Return a run that goes on, whose limits somebody may order, or a GPU, with the one run that has it."""
        if isinstance(key, GpuKey):
            return self._gpu_of(key, session)
        if session.writer.user not in {None, key.user}:
            detail = f"The token is for the runs of {session.writer.user} alone; this run is of {key.user}."
            raise _RefusedError(HTTPStatus.FORBIDDEN, detail, (subject_path(key), "Back to the run"))
        if key not in running_runs(self._state, self._clock.now_s()):
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"No run {key} goes on.", ("/runs", "All runs"))
        return key, None

    def _gpu_of(self, key: GpuKey, session: Session) -> tuple[RunKey | None, GpuView]:
        """Return a GPU of a node that is online, and the run that has it; None: there is none, or none for certain.

        A GPU says the name of its job alone, which another user's may have, too.
        """
        if session.writer.user is not None:
            detail = (
                f"The token is for the runs of {session.writer.user} alone; only operators give orders about a GPU."
            )
            raise _RefusedError(HTTPStatus.FORBIDDEN, detail, (subject_path(key), "Back to the GPUs"))
        now_s = self._clock.now_s()
        view = next((view for view in gpu_views(self._state, now_s) if view.key == key), None)
        if view is None or not self._state.is_online(key.node):
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"No GPU {key} is online.", ("/gpus", "All GPUs"))
        runs = [
            each
            for each, run in running_runs(self._state, now_s).items()
            if each.job == view.job and (run.energy is None or run.energy.gpu_model == view.model)
        ]
        return runs[0] if len(runs) == 1 else None, view

    # Who asks.

    def _monotonic_s(self) -> float:
        return self._clock.monotonic_ns() / NS_PER_S

    def _count(self, buckets: RecentDict[Counted, TokenBucket], of: Counted, n_most: int, what: str) -> None:
        """Refuse what is more than there may be in a minute."""
        bucket = buckets.get(of)
        if bucket is None:
            bucket = buckets[of] = TokenBucket(n_most / 60.0, self._monotonic_s(), burst_s=60.0)
        if not bucket.take(self._monotonic_s()):
            detail = f"more than {n_most} {what}: try again in a minute"
            status = HTTPStatus.TOO_MANY_REQUESTS
            raise ProblemError(status, "too_many", detail, headers={"Retry-After": "60"})

    def _session_id(self, request: web.Request, approach: Approach) -> str:
        found = re.search(
            rf"(?:^|;) *{_cookie_name(approach)}=([A-Za-z0-9_-]{{43}}) *(?:;|$)", request.headers.get("Cookie", "")
        )
        return "" if found is None else found[1]

    async def _session(self, request: web.Request, approach: Approach) -> Session | None:
        """Return the session of a request; None: there is none, or its token is not in the file any more."""
        session_id = self._session_id(request, approach)
        session = self._sessions.find(session_id, self._monotonic_s()) if session_id else None
        if session is not None and await self._owner_of(session.token) != session.writer:
            self._sessions.end(session_id)
            return None
        return session

    async def _bearer(self, request: web.Request, approach: Approach) -> Writer | None:
        """Return whose the token in the header of a request is; None: nobody's, which counts as an attempt."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        attempts, writer = self._attempts_of(approach), await self._owner_of(digest_of(token.strip()))
        if writer is None:
            attempts.spend()
        return writer

    async def _owner_of(self, digest: bytes) -> Writer | None:
        if self._tokens is None:
            return None
        try:
            return await self._disk.run(partial(self._tokens.owner_of_digest, digest))
        except OSError as error:
            raise unavailable("timeout", f"the file of tokens cannot be read: {error.strerror}") from error

    def _check(self, fields: dict[str, str], session_id: str, form: str) -> None:
        """Refuse a form that was not made for a session."""
        if not session_id or not self._sessions.is_form_code(fields.get("code", ""), session_id, form):
            raise _RefusedError(HTTPStatus.FORBIDDEN, _FORGED)

    async def _read(self, request: web.Request) -> dict[str, str]:
        return await read_form(request, max_bytes=MAX_BODY_BYTES, timeout_s=BODY_TIMEOUT_S)

    def _to_sign_in(self, request: web.Request) -> web.Response:
        then = request.rel_url.raw_path_qs
        return _redirect(f"{SIGN_IN}?then={_quoted(then)}")


def _check_approach(approach: Approach) -> None:
    if approach.fault:
        raise _RefusedError(
            HTTPStatus.FORBIDDEN, f"Nobody signs in this way, and nothing is ordered: {approach.fault}."
        )


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("&", "%26").replace("+", "%2B").replace("#", "%23")


def _then(text: str) -> str:
    return text if _THEN.match(text) else "/"


def _redirect(path: str) -> web.Response:
    return web.Response(status=HTTPStatus.SEE_OTHER.value, headers={"Location": path})


def _cookie_name(approach: Approach) -> str:
    """Return the name of the cookie: the prefix has browsers refuse one that is not for this host alone, over TLS."""
    return f"__Host-{_COOKIE}" if approach.is_encrypted else _COOKIE


def _set_cookie(response: web.Response, approach: Approach, session_id: str) -> None:
    lasts_s = SESSION_S if session_id else 0
    flags = f"Path=/; Max-Age={lasts_s:.0f}; HttpOnly; SameSite=Strict{'; Secure' if approach.is_encrypted else ''}"
    response.headers["Set-Cookie"] = f"{_cookie_name(approach)}={session_id}; {flags}"


def _subject_of(request: web.Request) -> Subject:
    if "gpu_uuid" in request.match_info:
        return GpuKey(path_name(request, "node"), path_name(request, "gpu_uuid"))
    return RunKey(path_user(request), path_name(request, "job"), path_name(request, "run"))


def _action_of(fields: dict[str, str], subject: Subject) -> Action:
    action, actions = fields.get("action", ""), GPU_ACTIONS if isinstance(subject, GpuKey) else ACTIONS
    if action not in actions:
        raise invalid_request(f"action = {action[:20]!r}: must be one of {', '.join(actions)}")
    return cast("Action", action)
