import { createServer, type Socket } from 'node:net'
import { createSecureContext, TLSSocket } from 'node:tls'

type Options = {
  /** With it the server takes STARTTLS. */
  tls?: { key: string; cert: string }
  /** Refuses the password, and repeats it. */
  refusesLogin?: true
}

/** A mail as the server got it: its envelope, its text, and whether it came by TLS. */
type Mail = { from: string; to: string[]; text: string; isSecure: boolean }

/** A mail server on this machine, as far as one sender needs it. RFC 5321, RFC 3207. */
export async function startSmtp({ tls, refusesLogin }: Options = {}) {
  const mails: Mail[] = []
  const lines: string[] = []
  const sockets = new Set<Socket>()
  const server = createServer((raw) => {
    sockets.add(raw)
    let socket = raw
    let pending = ''
    let mail: Mail | undefined
    const fresh = () => ({ from: '', to: [], text: '', isSecure: socket !== raw })
    const say = (line: string) => void socket.write(`${line}\r\n`)
    let current: Mail = fresh()
    const answers: Readonly<Record<string, (line: string) => void>> = {
      EHLO: () =>
        say(`250-mail.test\r\n${tls && socket === raw ? '250-STARTTLS\r\n' : ''}250 AUTH PLAIN`),
      STARTTLS() {
        if (tls === undefined) return say('502 no')
        say('220 go')
        raw.removeAllListeners('data')
        const secureContext = createSecureContext(tls)
        socket = new TLSSocket(raw, { isServer: true, secureContext })
        current = fresh()
        listen()
      },
      AUTH: (line) => say(refusesLogin ? `535 no ${line}` : '235 ok'),
      MAIL(line) {
        current.from = line.slice(10)
        say('250 ok')
      },
      RCPT(line) {
        current.to.push(line.slice(8))
        say('250 ok')
      },
      DATA() {
        mail = current
        say('354 go')
      },
      QUIT: () => void socket.end('221 bye\r\n'),
    }
    const read = () => {
      for (;;) {
        const end = pending.indexOf(mail === undefined ? '\r\n' : '\r\n.\r\n')
        if (end < 0) return
        const text = pending.slice(0, end)
        pending = pending.slice(end + (mail === undefined ? 2 : 5))
        if (mail !== undefined) {
          mails.push({ ...mail, text })
          mail = undefined
          say('250 ok')
        } else {
          lines.push(text)
          const answer = answers[text.split(' ')[0] ?? '']
          if (answer) answer(text)
          else say('502 no')
        }
      }
    }
    function listen() {
      socket.on('error', () => socket.destroy())
      socket.on('data', (part) => {
        pending += part.toString()
        read()
      })
    }
    listen()
    say('220 mail.test ESMTP')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port')
  return {
    port: address.port,
    mails,
    /** Every command. */
    lines,
    async stop() {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}
