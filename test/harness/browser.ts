import { existsSync } from 'node:fs'
import { type Browser, chromium, type Page } from 'playwright-core'

/** The headless shell comes first: it has no window, whose own pages take as much CPU as ours. */
const names = ['chromium-headless-shell', 'chromium', 'chromium-browser', 'google-chrome']

/**
 * Path of a Chromium on this machine, if there is one. CHROMIUM names another one, or none if
 * empty.
 */
export const chromiumPath =
  process.env.CHROMIUM === undefined
    ? names.map((name) => Bun.which(name) ?? `/usr/bin/${name}`).find((path) => existsSync(path))
    : process.env.CHROMIUM || undefined

/** Longest wait for a page: on a busy machine half a minute, the default, is short. */
const waitMs = 120_000

/** Starts it without a window. Throws without a Chromium. */
export async function startBrowser(): Promise<Browser> {
  if (chromiumPath === undefined) throw new Error('there is no Chromium')
  const browser = await chromium.launch({
    timeout: waitMs,
    executablePath: chromiumPath,
    args: [
      // Containers have neither its sandbox nor much shared memory.
      ...['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--process-per-site'],
      // Each document runs its scripts and axe once or twice: to optimise them costs more than it saves.
      '--js-flags=--no-opt,--no-maglev',
    ],
  })
  const newContext = browser.newContext.bind(browser)
  browser.newContext = async (options) => {
    const context = await newContext(options)
    context.setDefaultTimeout(waitMs)
    return context
  }
  return browser
}

/** Reports the errors of a page while it is open. */
export function complaintsOf(page: Page, tell: (complaint: string) => void): void {
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) tell(message.text())
  })
  page.on('pageerror', (error) => tell(error.message))
  page.on('dialog', (dialog) => {
    tell(`dialog: ${dialog.message()}`)
    void dialog.dismiss()
  })
}

const axe = await Bun.file(require.resolve('axe-core/axe.min.js')).text()

/** Rules whose result depends on the colour scheme; the others read the document, which has one. */
export const colourRules = ['color-contrast', 'link-in-text-block'] as const

/** What axe-core finds in a page or below a selector, as `rule: element`; in all its rules by default. */
export async function violationsOf(
  page: Page,
  { rules, within }: { rules?: readonly string[]; within?: string } = {},
): Promise<string[]> {
  if (!(await page.evaluate('"axe" in window'))) await page.evaluate(axe)
  const options = { resultTypes: ['violations'], ...(rules && { runOnly: rules }) }
  const context = within === undefined ? 'document' : JSON.stringify(within)
  return page.evaluate(`axe.run(${context}, ${JSON.stringify(options)}).then((result) => {
    if (result.violations.length + result.passes.length === 0) throw new Error('no rule applied')
    return result.violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => id + ': ' + html))
  })`)
}
