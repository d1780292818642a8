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
  type SignInOptions,
  signInForm,
  signOutFields,
} from './sign-in'
import type { Sources } from './sources'
import { storyPage } from './story'

export type AdminOptions = SignInOptions & { sources: Sources }

/** Makes the content of a page for a reader who may see it. */
type Main = (reader: NonNullable<Reader>) => Html | Promise<Html>

/** The pages of the operator. */
export function createAdmin(config: Config, options: AdminOptions) {
  const { sources, log } = options
  const access = createSignIn(config.service, options)

  const page = (reader: Reader, one: Page, more?: Parameters<typeof respond>[1]) =>
    respond(layout(config, reader, one), more)
  /** The form for the token, for everyone else. */
  const form = (request: Request, { status, fault }: Partial<Refused> = {}) => {
    const unsafe = access.transport(request)
    const main = signInForm({ ...(fault && { fault }), ...(unsafe && { unsafe }) })
    return page(undefined, { title: 'Sign in', path: undefined, main }, { status: status ?? 200 })
  }
  const readerOf = (request: Request): Reader | 'wrong' => {
    const isProgram = access.bearer(request)
    if (isProgram === undefined) return access.sessionOf(request)
    return isProgram ? 'program' : 'wrong'
  }
  /** Answers what only an operator may read. */
  const guarded = async (
    request: Request,
    answer: (reader: NonNullable<Reader>) => Response | Promise<Response>,
  ): Promise<Response> => {
    const reader = readerOf(request)
    if (reader === 'wrong') return wrongToken()
    if (reader !== undefined) return answer(reader)
    return pathOf(request.url).replace(/\/$/, '') === '/admin' ? form(request) : redirect('/admin')
  }
  const wrongToken = () => {
    const main = signInForm({ fault: 'This token is wrong.' })
    return page(
      undefined,
      { title: 'Sign in', path: undefined, main },
      { status: 401, headers: { 'www-authenticate': 'Bearer realm="admin"' } },
    )
  }
  const show = (request: Request, path: AdminPath, title: string, main: Main) =>
    guarded(request, async (reader) => page(reader, { title, path, main: await main(reader) }))

  const noAction = (reader: NonNullable<Reader>) => {
    const main = html`<h1>There is no such action</h1>
<p class="empty">What it is about may be gone. Open the page again.</p>`
    return page(reader, { title: 'Not found', path: undefined, main }, { status: 404 })
  }

  return {
    overview: (request: Request) =>
      show(request, '/admin', 'Overview', () => overviewPage(config, sources)),
    payments: (request: Request) =>
      show(request, '/admin/payments', 'Payments', () =>
        paymentsPage(config, sources, paramsOf(request)),
      ),
    orders: (request: Request) =>
      show(request, '/admin/orders', 'Orders', () =>
        ordersPage(config, sources, paramsOf(request)),
      ),
    merchants: (request: Request) =>
      show(request, '/admin/merchants', 'Merchants', () => merchantsPage(config, sources)),
    networks: (request: Request) =>
      show(request, '/admin/networks', 'Networks', () => networksPage(config, sources)),
    grants: (request: Request) =>
      show(request, '/admin/grants', 'Grants', () => grantsPage(config, sources)),
    facilitator: (request: Request) =>
      show(request, '/admin/facilitator', 'Facilitator', () => facilitatorPage(config, sources)),
    configuration: (request: Request) =>
      show(request, '/admin/configuration', 'Configuration', () =>
        configurationPage(config, sources),
      ),
    confirm: (request: Request, name: string) =>
      guarded(request, (reader) => {
        const subject = paramsOf(request).get('subject') ?? ''
        const action = actionOf(config, sources, name, subject)
        if (action === undefined) return noAction(reader)
        const main = confirmPage(name, action, reader)
        return page(reader, { title: action.title, path: undefined, main })
      }),
    act: (request: Request, name: string) =>
      readable(config, async () => {
        const sent = await access.form(request)
        if (sent === undefined) return redirect('/admin')
        if (!('form' in sent)) return form(request, sent)
        const subject = subjectOf(sent.form)
        const action = actionOf(config, sources, name, subject)
        if (action === undefined) return noAction(sent.session)
        const done = await action.run()
        const client = access.clientOf(request)
        log('admin-action', { action: name, subject, client, ok: done.ok, result: done.text })
        sent.session.done = done
        return redirect(action.back)
      }),
    csv: (request: Request) =>
      guarded(request, () => paymentsCsv(config, sources, paramsOf(request))),
    payment: (request: Request, id: string) =>
      guarded(request, async (reader) => {
        const main = await storyPage(config, sources, id)
        const path = '/admin/payments'
        if (main !== undefined) return page(reader, { title: 'Payment', path, main })
        return page(reader, { title: 'Not found', path, main: missing(id) }, { status: 404 })
      }),
    signIn: (request: Request) =>
      readable(config, async () => {
        const done = await access.signIn(request)
        return done instanceof Response ? done : form(request, done)
      }),
    signOut: (request: Request) =>
      readable(config, async () => {
        const sent = await access.form(request)
        if (sent === undefined) return redirect('/admin')
        if (!('form' in sent)) return form(request, sent)
        const { where } = Schema.readQuery(signOutFields, sent.form).values
        return access.end(request, where === 'everywhere')
      }),
  }
}

function paramsOf({ url }: Request): URLSearchParams {
  return new URLSearchParams(searchOf(url))
}

function missing(id: string): Html {
  return html`<h1>There is no such payment</h1>
<p class="empty"><code>${id.slice(0, 80)}</code> is not an id of this ledger.</p>
<p><a href="/admin/payments">All payments</a></p>`
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
