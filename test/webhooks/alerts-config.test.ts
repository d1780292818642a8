import { expect, test } from 'bun:test'
import { needsRestart } from '../../src/config/restart'
import { configOf, env, linesOf, named, small } from '../harness/config'

/** `[[alerts]]` in merchants.toml. */

const token = `123456:${'s3cret-'.repeat(5)}`
const secrets = {
  ...env,
  URL: 'https://hooks.slack.com/services/T0/B0/s3cret',
  PRIVATE: 'https://10.0.0.1/s3cret',
  TOKEN: token,
  PASSWORD: 's3cret',
}
const options = { env: secrets }
const entry = (kind: string, ...lines: string[]) =>
  `\n[[alerts]]\nkind = "${kind}"\n${lines.join('\n')}\n`
const url = `url = "${named('URL')}"`
const mail = ['host = "smtp.example.com"', 'from = "a@b.test"', 'to = ["c@d.test"]']
const login = ['user = "ops"', `password = "${named('PASSWORD')}"`]

test('places of each kind are read, and a change of them needs no restart', () => {
  const config = configOf(
    small +
      entry('slack', url, 'about = ["gas", "network"]') +
      entry('telegram', `token = "${named('TOKEN')}"`, 'chat = "@ops"') +
      entry('mail', ...mail, ...login, 'tls = "tls"'),
    options,
  )
  const [slack, telegram, smtp] = config.alerts
  expect(slack).toMatchObject({ about: ['gas', 'network'], url: new URL(secrets.URL) })
  expect(telegram).toMatchObject({ token, chat: '@ops', about: [] })
  expect(smtp).toMatchObject({ host: 'smtp.example.com', tls: 'tls', to: ['c@d.test'] })
  expect(new Set(config.alerts.map(({ id }) => id)).size).toBe(3)
  expect(needsRestart(configOf(small), config)).toEqual([])
})

const cases: readonly (readonly [string, string])[] = [
  [entry('pager'), 'kind must be one of "slack", "discord", "telegram", "mail"'],
  [entry('slack'), `url is missing; write url = "${named('SLACK_URL')}"`],
  [
    entry('slack', `url = "${secrets.URL}"`),
    `url is a secret: write url = "${named('SLACK_URL')}"`,
  ],
  [entry('slack', `url = "${named('PASSWORD')}"`), 'url must be an absolute URL'],
  [
    entry('discord', `url = "${named('PRIVATE')}"`),
    'url is a private address; or set allow_private',
  ],
  [
    entry('slack', url, 'chat = "1"'),
    'unknown key chat; known here: about, allow_private, kind, url',
  ],
  [entry('slack', url, 'about = ["gass"]'), 'about[0] must be one of "gas", '],
  [entry('slack', url) + entry('slack', url), 'the place is already that of line '],
  [entry('telegram', `token = "${token}"`, 'chat = "1"'), 'token is a secret: write token = '],
  [entry('telegram', `token = "${named('URL')}"`, 'chat = "1"'), 'token must be the token that'],
  [entry('telegram', `token = "${named('TOKEN')}"`), 'chat is missing'],
  [entry('telegram', `token = "${named('NONE')}"`, 'chat = "1"'), 'the environment has no NONE'],
  [entry('mail', ...mail, 'user = "ops"', 'password = "s3cret"'), 'password is a secret: write'],
  [entry('mail', ...mail, 'user = "ops"'), 'user and password belong together'],
  [
    entry('mail', ...mail, 'tls = "none"'),
    'tls = "none" sends in clear text; or set allow_private',
  ],
  [entry('mail', ...mail.slice(1), 'host = "192.168.1.2"'), 'host is a private address'],
  ...['a/b', ':::', '1.2.3.400', 'smtp.test:25'].map(
    (host) =>
      [
        entry('mail', ...mail.slice(1), `host = "${host}"`),
        'host must be the name of a server',
      ] as const,
  ),
  [entry('mail', ...mail, 'port = 0'), 'port must be an integer from 1 to 65535'],
  [
    entry('mail', mail[0] ?? '', mail[2] ?? '', 'from = "A <a@b.test>"'),
    'from must be a mail address',
  ],
  [
    entry('mail', ...mail.slice(0, 2), 'to = ["a@b.test\\r\\nBcc: x@y.z"]'),
    'to[0] must be a mail address without a name',
  ],
]
for (const [text, message] of cases)
  test(`error: ${message}`, () => {
    const lines = linesOf(small + text, options)
    expect(lines).toHaveLength(1)
    expect(lines[0]).toContain(message)
    if (!text.includes('Bcc')) expect(lines[0]).not.toContain('s3cret')
  })
