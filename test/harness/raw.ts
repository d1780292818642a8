import net from 'node:net'

/** An answer as it was transmitted. */
export type Answer = { status: number; headers: Headers; body: string }

/**
 * Writes text, one byte a character, and reads all answers until the other side closes. The last
 * request should contain `Connection: close`. `next` is written when the first answer arrives.
 * Throws when the connection is still open after two minutes.
 */
export function exchange(url: string, text: string, next?: string): Promise<Answer[]> {
  return new Promise((resolve, reject) => {
    const socket = connect(url, text)
    const chunks: Buffer[] = []
    let following = next
    const timer = setTimeout(() => {
      socket.destroy()
      reject(
        new Error(
          `still open after two minutes: ${text.slice(0, 80)} after ${Buffer.concat(chunks)}`,
        ),
      )
    }, 120_000)
    socket.on('data', (chunk) => {
      chunks.push(Buffer.from(chunk))
      if (following === undefined || !/HTTP\/1\.1 [2-5]/.test(Buffer.concat(chunks).toString()))
        return
      socket.write(following)
      following = undefined
    })
    socket.on('close', () => {
      clearTimeout(timer)
      resolve(answersOf(Buffer.concat(chunks).toString('latin1')))
    })
  })
}

/** A connection that has sent text, one byte a character, for further steps of the test. */
export function connect(url: string, text: string): net.Socket {
  const socket = net.connect(Number(new URL(url).port), '127.0.0.1')
  // A reset by the other side counts as the end of the answers.
  socket.on('error', () => {})
  socket.write(Buffer.from(text, 'latin1'))
  return socket
}

/** A request; `headers` are lines, so that names may be repeated. */
export function request(target: string, headers: readonly string[] = [], method = 'GET'): string {
  return [`${method} ${target} HTTP/1.1`, 'Host: localhost', ...headers, '', ''].join('\r\n')
}

export const close = 'Connection: close'

/** Splits the answers of a connection, without interim ones. */
function answersOf(text: string): Answer[] {
  const answers: Answer[] = []
  let rest = text
  while (rest !== '') {
    const end = rest.indexOf('\r\n\r\n')
    const [first = '', ...lines] = rest.slice(0, end).split('\r\n')
    const status = Number(/^HTTP\/1\.1 (\d{3})/.exec(first)?.[1])
    if (end === -1 || !status) throw new Error(`not an answer: ${rest.slice(0, 80)}`)
    const headers = new Headers(
      lines.map((line): [string, string] => {
        const colon = line.indexOf(':')
        return [line.slice(0, colon), line.slice(colon + 1).trim()]
      }),
    )
    rest = rest.slice(end + 4)
    if (status < 200) continue
    const { body, length } = bodyOf(headers, rest)
    answers.push({ status, headers, body })
    rest = rest.slice(length)
  }
  return answers
}

function bodyOf(headers: Headers, rest: string): { body: string; length: number } {
  if (!headers.get('transfer-encoding')?.includes('chunked')) {
    const length = Math.min(Number(headers.get('content-length') ?? 0), rest.length)
    return { body: rest.slice(0, length), length }
  }
  let body = ''
  let at = 0
  for (;;) {
    const line = rest.indexOf('\r\n', at)
    const size = Number.parseInt(rest.slice(at, line), 16)
    if (line === -1 || !(size > 0)) return { body, length: line === -1 ? rest.length : line + 4 }
    body += rest.slice(line + 2, line + 2 + size)
    at = line + 2 + size + 2
  }
}
