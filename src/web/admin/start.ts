import type { Config } from '../../config/Config'
import { pathOf, searchOf } from '../../http/url'
import * as Problem from '../../protocol/Problem'
import * as Schema from '../../protocol/Schema'
import { type Html, html } from '../html'
import { actionOf, confirmPage, subjectOf } from './actions'
import { configurationPage } from './configuration'
import { type AdminPath, layout, type Page, type Reader, redirect, respond } from './layout'
import { merchantsPage } from './merchants'
import { facilitatorPage, networksPage } from './networks'
import { grantsPage, ordersPage } from './orders'
import { overviewPage } from './overview'
import { paymentsCsv, paymentsPage } from './payments'
import {
  createSignIn,
  type Refused,
  type Sent,
  type SignInOptions,
  signInForm,
  signOutFields,
} from './sign-in'
import type { Sources } from './sources'
import { storyPage } from './story'

export type AdminOptions = SignInOptions & { sources: Sources }

/** Makes the content of a page for a reader who may see it. */
type Main = (reader: NonNullable<Reader>) => Html | undefined | Promise<Html | undefined>

/** The pages of the operator. */
export function createAdmin(config: Config, options: AdminOptions) {
  const access = createSignIn(config.service, options)
  const answers = createAnswers(config, access)
  return {
    ...createReadPages(config, options.sources, answers),
    ...createForms(config, { ...options, access, answers }),
  }
}

type Access = ReturnType<typeof createSignIn>
type Answers = ReturnType<typeof createAnswers>

/** Answers to operators and to everyone else. */
function createAnswers(config: Config, access: Access) {
  const page = (reader: Reader, one: Page, more?: Parameters<typeof respond>[1]) =>
    respond(layout(config, reader, one), more)
  /** The form for the token, for everyone else. */
  const form = (request: Request, { status, fault }: Partial<Refused> = {}) => {
    const unsafe = access.transport(request)
    const isForm = unsafe === undefined && status === 403
    const main = signInForm({ ...(fault && { fault }), ...(unsafe && { unsafe }), isForm })
    return page(undefined, { title: 'Sign in', path: undefined, main }, { status: status ?? 200 })
  }
  const wrongToken = () => {
    const main = signInForm({ fault: 'This token is wrong.' })
    const headers = { 'www-authenticate': 'Bearer realm="admin"' }
    const one = { title: 'Sign in', path: undefined, main }
    return page(undefined, one, { status: 401, headers })
  }
  /** Answers with pages that only an operator may read. */
  const guarded = async (
    request: Request,
    answer: (reader: NonNullable<Reader>) => Response | Promise<Response>,
  ): Promise<Response> => {
    const isProgram = access.bearer(request)
    if (isProgram === false) return wrongToken()
    const reader = isProgram === true ? 'program' : access.sessionOf(request)
    if (reader !== undefined) return answer(reader)
    const isFirst = pathOf(request.url).replace(/\/$/, '') === '/admin'
    return isFirst ? form(request) : redirect('/admin')
  }
  return {
    page,
    form,
    guarded,
    /** A page of the navigation; 404 with `missing` when there is nothing to show. */
    show: (request: Request, { path, title }: Omit<Page, 'main'>, main: Main) =>
      guarded(request, async (reader) => {
        const found = await main(reader)
        if (found !== undefined) return page(reader, { title, path, main: found })
        return page(reader, { title: 'Not found', path, main: missing(path) }, { status: 404 })
      }),
  }
}

function createReadPages(config: Config, sources: Sources, { show, guarded }: Answers) {
  const shown =
    (path: AdminPath, title: string, main: (params: URLSearchParams) => ReturnType<Main>) =>
    (request: Request) =>
      show(request, { path, title }, () => main(paramsOf(request)))
  return {
    overview: shown('/admin', 'Overview', () => overviewPage(config, sources)),
    payments: shown('/admin/payments', 'Payments', (params) =>
      paymentsPage(config, sources, params),
    ),
    csv: (request: Request) =>
      guarded(request, () => paymentsCsv(config, sources, paramsOf(request))),
    payment: (request: Request, id: string) =>
      show(request, { path: '/admin/payments', title: 'Payment' }, () =>
        storyPage(config, sources, id),
      ),
    orders: shown('/admin/orders', 'Orders', (params) => ordersPage(config, sources, params)),
    merchants: shown('/admin/merchants', 'Merchants', () => merchantsPage(config, sources)),
    networks: shown('/admin/networks', 'Networks', () => networksPage(config, sources)),
    grants: shown('/admin/grants', 'Grants', () => grantsPage(config, sources)),
    facilitator: shown('/admin/facilitator', 'Facilitator', () => facilitatorPage(config, sources)),
    configuration: shown('/admin/configuration', 'Configuration', () =>
      configurationPage(config, sources),
    ),
    confirm: (request: Request, name: string) =>
      show(request, { path: undefined, title: 'Confirm' }, (reader) => {
        const subject = paramsOf(request).get('subject') ?? ''
        const action = actionOf(config, sources, name, subject)
        return action && confirmPage(name, action, reader)
      }),
  }
}

/** The effects of the forms. */
function createForms(
  config: Config,
  { sources, log, access, answers }: AdminOptions & { access: Access; answers: Answers },
) {
  const { form, page } = answers
  /** Runs a form that a signed-in operator has sent. */
  const sent = (request: Request, run: (sent: Sent) => Response | Promise<Response>) =>
    readable(config, async () => {
      const own = await access.form(request)
      if (own === undefined) return redirect('/admin')
      return 'form' in own ? run(own) : form(request, own)
    })
  return {
    signIn: (request: Request) =>
      readable(config, async () => {
        const done = await access.signIn(request)
        return done instanceof Response ? done : form(request, done)
      }),
    signOut: (request: Request) =>
      sent(request, (own) => {
        const { where } = Schema.readQuery(signOutFields, own.form).values
        return access.end(request, where === 'everywhere')
      }),
    act: (request: Request, name: string) =>
      sent(request, async (own) => {
        const subject = subjectOf(own.form)
        const action = actionOf(config, sources, name, subject)
        if (action === undefined) {
          const one = { title: 'Not found', path: undefined, main: missing(undefined) }
          return page(own.session, one, { status: 404 })
        }
        const done = await action.run()
        const client = access.clientOf(request)
        log('admin-action', { action: name, subject, client, ok: done.ok, result: done.text })
        own.session.done = done
        return redirect(action.back)
      }),
  }
}

function missing(path: AdminPath | undefined): Html {
  if (path === '/admin/payments')
    return html`<h1>There is no such payment</h1>
<p class="empty">The ledger has no payment with this id. Look for it by its transaction or by its payer.</p>
<p><a class="button" href="/admin/payments">Back to the payments</a></p>`
  return html`<h1>This is not possible</h1>
<p class="empty">The merchant, the network or the order of this action does not exist, or there is no such action.</p>
<p><a class="button" href="/admin">Back to the overview</a></p>`
}

function paramsOf({ url }: Request): URLSearchParams {
  return new URLSearchParams(searchOf(url))
}

/** A page instead of the JSON of a problem: forms are sent by people. */
async function readable(config: Config, answer: () => Promise<Response>): Promise<Response> {
  try {
    return await answer()
  } catch (error) {
    if (!(error instanceof Problem.ProblemError)) throw error
    const { status, title, detail, headers } = error
    const main = html`<div class="gate"><h1>${title}</h1><p class="fault" role="alert">${detail}</p>
<p><a href="/admin">Back to the operation</a></p></div>`
    return respond(layout(config, undefined, { title, path: undefined, main }), {
      status,
      headers: { ...headers },
    })
  }
}
