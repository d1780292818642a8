import { createTransport } from 'nodemailer'
import type { Alert } from '../config/Config'
import { createResolver } from '../net/resolve'
import { ipVersion } from '../net/runtime'
import { startWatch, UpstreamError } from '../net/watch'
import type { AlertText } from './alert-text'
import { addressesOf, type PostAnswer, type PostOptions } from './post'

type Mail = Extract<Alert, { kind: 'mail' }>

/** Longest time of a mail, ms. */
const timeoutMs = 20_000

const ports = { starttls: 587, tls: 465, none: 25 } as const

/**
 * Sends one mail once, to an address of the server that was checked. Never rejects. The reason of a
 * failure is a code, because answers of the server may repeat the name or the password.
 */
export async function sendMail(
  { host, tls, port = ports[tls], allowPrivate, user, password, from, to }: Mail,
  { title, text }: AlertText,
  options: PostOptions,
  signal: AbortSignal,
): Promise<PostAnswer> {
  const watch = startWatch(signal)
  watch.arm(options.timeoutMs ?? timeoutMs)
  let close = () => {}
  const send = async () => {
    const resolve = options.resolve ?? createResolver({ now: options.now })
    const [address] = await addressesOf(resolve, host, allowPrivate)
    if (watch.signal.aborted) return
    const transport = createTransport({
      ...{ host: address ?? host, port, secure: tls === 'tls' },
      // An attacker can remove STARTTLS from the answer of the server: then nothing is sent.
      ...{ requireTLS: tls === 'starttls', ignoreTLS: tls === 'none' },
      tls: {
        ...(ipVersion(host) === 0 && { servername: host }),
        ...(options.ca !== undefined && { ca: options.ca }),
      },
      ...(user !== undefined && { auth: { user, pass: password ?? '' } }),
      ...{ connectionTimeout: timeoutMs, greetingTimeout: timeoutMs, socketTimeout: timeoutMs },
      ...{ disableFileAccess: true, disableUrlAccess: true },
    })
    close = () => transport.close()
    await transport.sendMail({ from, to: [...to], subject: title, text })
  }
  try {
    await watch.race(send())
    return { status: 250, retryAfter: null }
  } catch (error) {
    const { code, responseCode } = error as { code?: string; responseCode?: number }
    const kind = error instanceof UpstreamError ? error.kind : 'smtp'
    return { error: [kind, code, responseCode].filter((part) => part !== undefined).join(' ') }
  } finally {
    watch.stop()
    close()
  }
}
