import type { Config } from '../../config/Config'
import { pathOf, searchOf } from '../../http/url'
import * as Problem from '../../protocol/Problem'
import * as Schema from '../../protocol/Schema'
import { type Html, html } from '../html'
import { actionFields, actionOf, confirmPage } from './actions'
import { channelsPage } from './channels'
import { configurationPage } from './configuration'
import {
  type AdminPage,
  type AdminPath,
  type AdminReader,
  type Live,
  redirect,
  sendAdminPage,
  titleOf,
} from './layout'
import { merchantsPage } from './merchants'
import { facilitatorPage, networksPage } from './networks'
import { grantsPage, ordersPage } from './orders'
import { overviewPage } from './overview'
import { paymentsCsv, paymentsPage } from './payments'
import { refundsPage } from './refunds'
import { funnelPage, salesPage } from './sales'
import {
  createSignIn,
  type RefusedForm,
  type SentForm,
  type SignInOptions,
  signInForm,
  signOutFields,
} from './sign-in'
import type { AdminContext, AdminSources } from './sources'
import { storyPage } from './story'
import { webhooksPage } from './webhooks'

type SignedIn = NonNullable<AdminReader>
type Answer = Response | Promise<Response>
type Main = Html | undefined | Promise<Html | undefined>

/** The pages of the operator. */
export function createAdminPages(
  config: Config,
  options: SignInOptions & { sources: AdminSources },
) {
  const { log } = options
  const context = { ...options.sources, config }
  const access = createSignIn(config.service, options)
  const page = (reader: AdminReader, one: AdminPage, more?: Parameters<typeof sendAdminPage>[3]) =>
    sendAdminPage(config, reader, one, more)
  const missing = (reader: AdminReader, path: AdminPath | undefined) =>
    page(reader, { title: 'Not found', path, main: missingText(path) }, { status: 404 })

  const signInPage = (main: Html, more: Parameters<typeof sendAdminPage>[3]) =>
    page(undefined, { title: 'Sign in', path: undefined, main }, more)
  /** The sign-in form, for a request without a session. */
  const form = (request: Request, { status = 200, fault }: Partial<RefusedForm> = {}) => {
    const unsafe = access.transport(request)
    const isForm = unsafe === undefined && status === 403
    return signInPage(signInForm({ fault, unsafe, isForm }), { status })
  }
  /** Answers with what only an operator may read. */
  const guarded = async (request: Request, answer: (reader: SignedIn) => Answer) => {
    const isProgram = access.bearer(request)
    if (isProgram === false) {
      const headers = { 'www-authenticate': 'Bearer realm="admin"' }
      return signInPage(signInForm({ fault: 'This token is wrong.' }), { status: 401, headers })
    }
    const reader = isProgram === true ? 'program' : access.sessionOf(request)
    if (reader !== undefined) return answer(reader)
    const isFirst = pathOf(request.url).replace(/\/$/, '') === '/admin'
    return isFirst ? form(request) : redirect('/admin')
  }
  /** A page of the navigation; 404 when there is nothing to show. */
  const show = (
    request: Request,
    path: AdminPath | undefined,
    title: string,
    makeMain: (reader: SignedIn) => Main,
  ) =>
    guarded(request, async (reader) => {
      const main = await makeMain(reader)
      if (main === undefined) return missing(reader, path)
      const live = isLive.has(path) ? liveOf(request, options.now()) : undefined
      return page(reader, { title, path, main, live })
    })
  const shown =
    (
      path: AdminPath,
      main: (context: AdminContext, params: URLSearchParams) => Html | Promise<Html>,
    ) =>
    (request: Request) =>
      show(request, path, titleOf(path), () => main(context, paramsOf(request)))

  /** Runs a form that a signed-in operator has sent. */
  const sent = (request: Request, run: (sent: SentForm) => Answer) =>
    readable(config, async () => {
      const own = await access.form(request)
      if (own === undefined) return redirect('/admin')
      return 'form' in own ? run(own) : form(request, own)
    })

  return {
    overview: shown('/admin', overviewPage),
    sales: shown('/admin/sales', salesPage),
    funnel: shown('/admin/funnel', funnelPage),
    payments: shown('/admin/payments', paymentsPage),
    csv: (request: Request) => guarded(request, () => paymentsCsv(context, paramsOf(request))),
    payment: (request: Request, id: string) =>
      show(request, '/admin/payments', 'Payment', () => storyPage(context, id)),
    refunds: (request: Request) =>
      show(request, '/admin/payments', 'Refunds', () => refundsPage(context)),
    orders: shown('/admin/orders', ordersPage),
    merchants: shown('/admin/merchants', merchantsPage),
    networks: shown('/admin/networks', networksPage),
    channels: shown('/admin/channels', channelsPage),
    grants: shown('/admin/grants', grantsPage),
    facilitator: shown('/admin/facilitator', facilitatorPage),
    webhooks: shown('/admin/webhooks', webhooksPage),
    configuration: shown('/admin/configuration', configurationPage),
    confirm: (request: Request, name: string) =>
      show(request, undefined, 'Confirm', async (reader) => {
        const subject = paramsOf(request).get('subject') ?? ''
        const action = await actionOf(context, name, subject)
        return action && confirmPage(name, action, reader)
      }),
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
        const { values, wrong } = Schema.readQuery(actionFields, own.form)
        const { subject = '' } = values
        const action = await actionOf(context, name, subject)
        // A field that cannot be read must not count as one that was left out.
        if (action === undefined || wrong.length > 0) return missing(own.session, undefined)
        const done = await action.run(values)
        const client = access.clientOf(request)
        log('admin-action', { action: name, subject, client, ok: done.ok, result: done.text })
        own.session.done = done
        return redirect(action.back)
      }),
  }
}

function missingText(path: AdminPath | undefined): Html {
  if (path === '/admin/payments')
    return html`<h1>There is no such payment</h1>
<p class="empty">The ledger has no payment with this id. Look for it by its transaction or by its payer.</p>
<p><a class="button" href="/admin/payments">Back to the payments</a></p>`
  return html`<h1>This is not possible</h1>
<p class="empty">The merchant, the network or the order of this action does not exist, or there is no such action.</p>
<p><a class="button" href="/admin">Back to the overview</a></p>`
}

/** Pages that a reader may let refresh themselves. */
const isLive: ReadonlySet<AdminPath | undefined> = new Set<AdminPath>([
  '/admin',
  '/admin/sales',
  '/admin/funnel',
  '/admin/payments',
  '/admin/webhooks',
])

/** Longest time that a page refreshes itself, ms. */
const liveMs = 15 * 60_000

/** `live` in the query is the time (unix ms) until which the page refreshes itself. */
function liveOf(request: Request, now: number): Live {
  const params = paramsOf(request)
  const until = Number(params.get('live') ?? '0')
  const isOn = until > now && until <= now + liveMs
  params.delete('live')
  if (!isOn) params.set('live', String(now + liveMs))
  return { isOn, href: `${pathOf(request.url)}?${params}` }
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
    return sendAdminPage(config, undefined, { title, path: undefined, main }, { status, headers })
  }
}
