// The page of a merchant: makes the request from the fields, as web/public/Example.ts and
// web/public/Commands.ts do.

const unencoded = /%(?:2C|3A|40)/g
const encode = (text) => encodeURIComponent(text).replace(unencoded, decodeURIComponent)
const shellWord = (text) => `'${text.replaceAll("'", "'\\''")}'`
const stringLiteral = (text) =>
  `'${JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"').replaceAll("'", "\\'")}'`

function segmentOf({ value, dataset }) {
  if (dataset.fixed !== undefined) return encode(value)
  const names = () => value.split('/').filter((name) => name !== '')
  const text = dataset.name === 'tail' ? names().map(encode).join('/') : encode(value)
  return dataset.prefix + text + dataset.suffix
}

function targetOf(form) {
  const tail = [...form.querySelectorAll('[data-in=tail]')]
  const isPart = ({ value, dataset }) =>
    dataset.fixed === undefined ? value !== '' : dataset.fixed === 'required'
  const segments = tail
    .slice(0, tail.findLastIndex(isPart) + 1)
    .filter(({ value }) => value !== '')
    .map((field) => `/${segmentOf(field)}`)
  const pairs = [...form.querySelectorAll('[data-in=query]')]
    .filter((field) => field.value !== '' && !field.closest('[hidden]'))
    .map(({ value, dataset }) => `${encode(dataset.name)}=${encode(value)}`)
  return form.dataset.path + segments.join('') + (pairs.length > 0 ? `?${pairs.join('&')}` : '')
}

function prepareCompose(form) {
  const section = form.closest('.route')
  const panel = section.querySelector('.wallet')
  const target = section.querySelector('[name=target]')
  const verb = section.querySelector('.try .method')
  const { method, body } = form.elements
  // A request with a body has some of its parameters there.
  const showFields = () => {
    for (const field of form.querySelectorAll('[data-of]'))
      field.hidden = (field.dataset.of === 'body') !== takesBody()
  }
  const { base } = section.querySelector('[data-base]').dataset
  const takesBody = () => ['POST', 'PUT', 'PATCH'].includes(panel.dataset.method)

  const show = () => {
    const isOurs = target.value.startsWith('/m/')
    if (isOurs) panel.dataset.target = target.value
    // A route of any path sells none before one is named.
    const isNamed =
      form.querySelector('[required]')?.value !== '' || target.value !== form.dataset.path
    panel.dataset.missing = isNamed ? '' : 'Name the path that you want to buy.'
    panel.dataset.body = takesBody() ? (body?.value ?? '') : ''
    verb.textContent = panel.dataset.method
    const values = { url: base + panel.dataset.target, body: panel.dataset.body }
    for (const code of section.querySelectorAll('[data-templates]')) {
      const template = JSON.parse(code.dataset.templates)[panel.dataset.method]
      code.textContent = template.replace(/@@(sh|js):(url|body)@@/g, (_, kind, name) =>
        kind === 'sh' ? shellWord(values[name]) : stringLiteral(values[name]),
      )
    }
    panel.dispatchEvent(new Event('turnpike:changed'))
  }
  const change = () => {
    panel.dataset.method = method?.value ?? panel.dataset.method
    showFields()
    target.value = targetOf(form)
    show()
  }
  form.addEventListener('input', change)
  form.addEventListener('submit', (event) => {
    event.preventDefault()
    change()
  })
  target.addEventListener('input', show)
  target.form.addEventListener('submit', (event) => {
    event.preventDefault()
    const request = { ...panel.dataset, target: target.value.trim() }
    askPrice(request, section.querySelector('.answer'))
  })
  showFields()
  // The browser fills fields again after a return to the page.
  addEventListener('pageshow', ({ persisted }) => persisted || change())
}

for (const form of document.querySelectorAll('form.compose')) {
  prepareCompose(form)
  form.classList.add('ready')
}
