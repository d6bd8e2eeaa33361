var n=t=>t.split("/").map(encodeURIComponent).join("/"),i=t=>`/playbooks/${n(t)}`,e=t=>`/api/catalog/${n(t)}`,s=t=>`/api/versions/${n(t)}`;export{i as a,e as b,s as c};
